"""Started as root: nothing is written where the servers' user, or another one, may write."""

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
def theirs(folder: Path) -> Path:
    """Returns a folder of the servers' user, with a link to a file of root's in it."""
    user = ServerUser.current()
    path = folder / "theirs"
    path.mkdir(mode=0o700)
    (path / "superuser.password").symlink_to(folder / "victim")
    os.chown(path, user.uid, user.gid)
    return path


@pytest.mark.parametrize("server", [PostgresServer, ValkeyServer])
def test_a_folder_of_the_servers_user_is_refused(
    folder: Path, theirs: Path, server: type[PostgresServer] | type[ValkeyServer]
) -> None:
    with pytest.raises(ServerError, match=f"{theirs} belongs to"):
        server(theirs).start()
    assert os.listdir(theirs) == ["superuser.password"]
    assert not (folder / "victim").exists()


@pytest.mark.parametrize("name", ["home", "logs"])
def test_a_link_to_a_folder_is_refused(folder: Path, name: str) -> None:
    private = folder / "private"
    private.mkdir(mode=0o700)
    (folder / name).symlink_to(private)
    stack = Stack(folder, Config(), listen="127.0.0.1:0")
    server = PostgresServer(folder / name) if name == "home" else stack
    with pytest.raises(ServerError, match=f"{name} is a link"):
        server.start()
    assert os.listdir(private) == []
    assert private.stat().st_mode & 0o777 == 0o700


def test_a_folder_that_others_may_write_in_is_closed_to_them(folder: Path) -> None:
    home = folder / "home"
    home.mkdir()
    home.chmod(0o777)
    with ValkeyServer(home):
        assert home.stat().st_mode & 0o777 == 0o755
    readable = [path.name for path in home.iterdir() if path.stat().st_mode & 0o077]
    assert readable == []
