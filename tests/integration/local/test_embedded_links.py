"""Started as root: the servers' user cannot make root write where it wants."""

import os
from pathlib import Path

import pytest

from service.local.postgres import PostgresServer
from service.local.processes import ServerError, ServerUser
from service.local.stack import Stack
from service.local.valkey import ValkeyServer
from service.settings.config import Config

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root writes for somebody else")


@pytest.fixture
def victim(folder: Path) -> Path:
    """A file of root's that must stay as it is."""
    path = folder / "victim"
    path.write_text("root's own\n")
    path.chmod(0o600)
    return path


def assert_untouched(victim: Path) -> None:
    found = victim.stat()
    assert (found.st_uid, found.st_mode & 0o777) == (0, 0o600)
    assert victim.read_text() == "root's own\n"


def folder_of_the_servers_user(path: Path) -> Path:
    """A server's folder as the first releases left it: the servers' user owns it."""
    user = ServerUser.current()
    path.mkdir(mode=0o700)
    os.chown(path, user.uid, user.gid)
    return path


POSTGRES = (
    "superuser.password",
    "login.password",
    "superuser.password.part",
    "login.password.part",
    "initdb.password.part",
    "initdb.password",
    "postgres.log",
    "owner.lock",
)
VALKEY = (
    "valkey.password",
    "valkey.password.part",
    "valkey.conf.part",
    "valkey.conf",
    "valkey.log",
    "owner.lock",
)


@pytest.mark.parametrize("hard", [False, True], ids=["symlink", "hardlink"])
@pytest.mark.parametrize(
    ("server", "name"),
    [(PostgresServer, name) for name in POSTGRES] + [(ValkeyServer, name) for name in VALKEY],
)
def test_a_planted_link_is_never_followed(
    folder: Path,
    victim: Path,
    server: type[PostgresServer] | type[ValkeyServer],
    name: str,
    hard: bool,
) -> None:
    home = folder_of_the_servers_user(folder / "home")
    if hard:
        os.link(victim, home / name)
    else:
        (home / name).symlink_to(victim)
    try:
        with server(home):
            pass
    except ServerError as error:
        assert str(home / name) in str(error)
    assert_untouched(victim)


@pytest.mark.parametrize("name", ["superuser.password", "postgres.log", "owner.lock"])
def test_a_planted_pipe_or_folder_stops_nobody_for_long(folder: Path, name: str) -> None:
    home = folder_of_the_servers_user(folder / "home")
    for plant in (os.mkfifo, os.mkdir):
        plant(home / name)
        with pytest.raises(ServerError, match=f"{home / name} is no plain file"):
            PostgresServer(home).start()
        os.rmdir(home / name) if plant is os.mkdir else os.unlink(home / name)
    with PostgresServer(home):
        pass


def test_a_password_that_somebody_planted_is_not_used(folder: Path) -> None:
    home = folder_of_the_servers_user(folder / "home")
    user = ServerUser.current()
    (home / "superuser.password").write_text("known")
    os.chown(home / "superuser.password", user.uid, user.gid)
    with pytest.raises(ServerError, match=r"superuser\.password belongs to"):
        PostgresServer(home).start()


@pytest.mark.parametrize("name", ["data", "data.part", "programs", "."])
def test_a_planted_link_to_a_folder_is_never_gone_through(
    folder: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    private = folder / "private"
    private.mkdir(mode=0o700)
    for entry in ("postmaster.pid", "PG_VERSION", "kept"):
        (private / entry).write_text("18\n")
    before = sorted((path.name, path.stat().st_mtime_ns) for path in private.iterdir())
    home = folder / "home"
    if name == ".":
        home.symlink_to(private)
    else:
        (folder_of_the_servers_user(home) / name).symlink_to(private)
    # So that they are copied.
    monkeypatch.setattr(ServerUser, "can_reach", lambda self, path: path.is_relative_to(folder))
    try:
        with PostgresServer(home):
            pass
    except ServerError as error:
        assert str(home) in str(error)
    assert sorted((path.name, path.stat().st_mtime_ns) for path in private.iterdir()) == before
    found = private.stat()
    assert (found.st_uid, found.st_mode & 0o777) == (0, 0o700)


def test_what_the_server_puts_in_its_data_leads_nowhere(folder: Path, victim: Path) -> None:
    home = folder / "home"
    with PostgresServer(home):
        pass
    pid_file = home / "data" / "postmaster.pid"
    for pipe in (False, True):
        if pipe:
            os.mkfifo(pid_file)
        else:
            pid_file.symlink_to(victim)
        with PostgresServer(home) as server:
            assert server.is_running()
    (home / "data" / "PG_VERSION").unlink()
    (home / "data" / "PG_VERSION").symlink_to(victim)
    with pytest.raises(ServerError, match="something else than PostgreSQL's data"):
        PostgresServer(home).start()
    assert_untouched(victim)


def test_a_folder_that_is_swapped_meanwhile_gets_no_write_of_ours(folder: Path) -> None:
    home = folder / "home"
    server = ValkeyServer(home)
    server.start()
    try:
        server.kill()
        home.rename(folder / "aside")
        bait = folder_of_the_servers_user(home)
        with pytest.raises(ServerError):
            server.restart()
        assert list(bait.iterdir()) == []
    finally:
        server.stop()


def test_the_logs_of_the_stack_follow_no_link(folder: Path, victim: Path) -> None:
    data = folder_of_the_servers_user(folder / "data")
    logs = folder_of_the_servers_user(data / "logs")
    os.chown(logs, 0, 0)
    (logs / "serve.log").symlink_to(victim)
    with pytest.raises(ServerError, match=r"serve\.log is no plain file"):
        Stack(data, Config(), listen="127.0.0.1:0").start()
    (logs / "serve.log").unlink()
    logs.rmdir()
    logs.symlink_to(folder)
    with pytest.raises(ServerError, match="logs is a link"):
        Stack(data, Config(), listen="127.0.0.1:0").start()
    assert_untouched(victim)
    assert not (folder / "serve.log").exists()
