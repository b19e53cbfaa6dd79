"""The guarantees of the embedded servers when they, or the service, are killed."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import psycopg
import pytest
from redis import Redis
from redis.exceptions import AuthenticationError

from service.local.binaries import PG_BIN_DIR
from service.local.postgres import PostgresServer
from service.local.processes import ServerError, ServerUser
from service.local.valkey import MAX_SOCKET_BYTES, ValkeyServer, url_of
from tests.support.embedded import DEBIAN, add, command_lines, rows, working_in
from tests.support.harness import eventually


@pytest.fixture(params=["wheel", "debian"])
def programs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wheel's PostgreSQL, and Debian's where it is installed."""
    if request.param == "debian":
        if not DEBIAN:
            pytest.skip("Debian's PostgreSQL is not installed")
        monkeypatch.setenv(PG_BIN_DIR, str(DEBIAN[-1].parent))


@pytest.mark.prove
def test_data_survives_stops_kills_and_a_killed_parent(folder: Path, programs: None) -> None:
    home = folder / "pg"
    with PostgresServer(home) as server:
        add(server.url, 1)
        assert server._process is not None
        server._process.send_signal(signal.SIGKILL)
        server._process.wait()
        assert not server.is_running()
        server.restart()
        add(server.url, 2)
    script = f"""
        import os, signal
        from pathlib import Path
        from service.local.postgres import PostgresServer
        from tests.support.embedded import DEBIAN, add
        server = PostgresServer(Path({str(home)!r}))
        server.start()
        add(server.url, 3)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=False)
    assert done.returncode == -signal.SIGKILL
    with PostgresServer(home) as server:
        assert rows(server.url) == [1, 2, 3]
    assert working_in(folder) == []


@pytest.mark.prove
def test_servers_end_when_their_parent_is_killed(folder: Path) -> None:
    script = f"""
        import os, signal
        from pathlib import Path
        from service.local.postgres import PostgresServer
        from service.local.valkey import ValkeyServer
        PostgresServer(Path({str(folder / "pg")!r})).start()
        ValkeyServer(Path({str(folder / "vk")!r})).start()
        os.kill(os.getpid(), signal.SIGKILL)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=False)
    eventually("both servers have ended", lambda: not working_in(folder))


@pytest.mark.prove
def test_the_server_is_durable_closed_and_no_superusers(folder: Path, programs: None) -> None:
    with PostgresServer(folder / "pg") as server, psycopg.connect(server.url) as connection:
        settings = {
            name: connection.execute(f"SHOW {name}").fetchone()
            for name in (
                "fsync",
                "synchronous_commit",
                "full_page_writes",
                "data_checksums",
                "listen_addresses",
                "server_encoding",
            )
        }
        assert [value[0] for value in settings.values() if value] == [
            "on",
            "on",
            "on",
            "on",
            "127.0.0.1",
            "UTF8",
        ]
        role = connection.execute(
            "SELECT rolsuper, rolbypassrls FROM pg_roles WHERE rolname = current_user"
        ).fetchone()
        assert role == (False, False)
        wrong = server.url.replace(server._login_password, "wrong")
        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            psycopg.connect(wrong)


@pytest.mark.prove
def test_a_folder_has_one_owner_and_secrets_are_private(folder: Path) -> None:
    home = folder / "pg"
    with PostgresServer(home) as server:
        with pytest.raises(ServerError, match="another process uses the data folder"):
            PostgresServer(home).start()
        for name in ("superuser.password", "login.password"):
            assert (home / name).stat().st_mode & 0o777 == 0o600
        assert server._password not in command_lines(folder)
    assert folder.stat().st_mode & 0o777 == 0o755, "folders that are not ours stay as they are"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root starts servers as somebody else")
def test_a_closed_folder_is_refused_by_name_and_left_as_it_is(folder: Path) -> None:
    closed = folder / "closed"
    closed.mkdir(mode=0o700)
    with pytest.raises(ServerError, match=f"cannot enter {closed}"):
        PostgresServer(closed / "pg").start()
    assert closed.stat().st_mode & 0o777 == 0o700


def test_programs_that_are_not_there_are_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PG_BIN_DIR, str(folder))
    with pytest.raises(ServerError, match=f"there is no PostgreSQL in {folder}"):
        PostgresServer(folder / "pg").start()


def test_no_other_user_can_replace_valkeys_socket(folder: Path) -> None:
    with ValkeyServer(folder / "vk", by_socket=True) as server:
        assert server.url.startswith("unix://")
        for _ in range(2):
            with Redis.from_url(server.url) as redis:
                assert redis.set("a", "b")
                assert redis.config_get("port") in ({"port": "0"}, {b"port": b"0"})
            run = (folder / "vk" / "run").stat()
            assert (run.st_mode & 0o777, run.st_uid) == (0o700, ServerUser.current().uid)
            server.kill()
            server.restart()
        found = url_of(server._password, server.place)
        assert found == server.url
    assert working_in(folder) == []


def test_a_path_that_is_too_long_for_a_socket_gets_a_port(folder: Path) -> None:
    with ValkeyServer(folder / ("v" * MAX_SOCKET_BYTES), by_socket=True) as server:
        assert isinstance(server.place, int)
        with Redis.from_url(server.url) as redis:
            assert redis.ping()


def test_valkey_wants_its_password_and_comes_back(folder: Path) -> None:
    with ValkeyServer(folder / "vk") as server:
        with Redis.from_url(server.url) as redis:
            assert redis.set("a", "b")
        with (
            Redis.from_url(server.url.replace(server._password, "wrong")) as stranger,
            pytest.raises(AuthenticationError),
        ):
            stranger.ping()
        port = server._port
        server.kill()
        server.restart()
        assert server._port == port
        assert server._password not in command_lines(folder)
    assert working_in(folder) == []
