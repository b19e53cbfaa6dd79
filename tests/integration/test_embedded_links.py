"""Started as root: the servers' user cannot make root write where it wants."""

import os
from pathlib import Path

import pytest

from service.embedded.postgres import PostgresServer
from service.embedded.processes import ServerError, ServerUser
from service.embedded.valkey import ValkeyServer

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
    "superuser.password.part",
    "login.password.part",
    "initdb.password.part",
    "initdb.password",
    "postgres.log",
    "owner.lock",
)
VALKEY = ("valkey.password.part", "valkey.conf.part", "valkey.conf", "valkey.log", "owner.lock")


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
