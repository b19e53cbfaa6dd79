"""Room on the disks of the embedded PostgreSQL."""

import errno
import os
import shutil
from pathlib import Path

import pytest

from service.local import disk
from service.local.folder import OwnFolder
from service.local.processes import ServerError
from service.local.stack import Stack
from service.settings.config import Config


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    (tmp_path / "pg_wal").mkdir()
    return tmp_path


def test_a_disk_with_room_is_no_complaint(cluster: Path) -> None:
    (room,) = disk.look(cluster)
    usage = shutil.disk_usage(cluster)
    assert room.place == cluster
    assert room.is_full == (usage.free < disk.FULL_BYTES)


def test_a_full_disk_is_named(cluster: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "FULL_BYTES", 2**60)
    assert disk.complaint(cluster) == (
        f"the disk of {cluster} is full; make room, and all goes on where it was"
    )


def test_what_is_not_there_is_left_out(tmp_path: Path) -> None:
    assert disk.look(tmp_path / "nothing") == []
    assert disk.complaint(tmp_path / "nothing") == ""


def test_a_start_that_finds_no_room_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(tmp_path / "logs"))

    monkeypatch.setattr(OwnFolder, "make", fails)
    stack = Stack(tmp_path, Config(), listen="127.0.0.1:0")
    with pytest.raises(ServerError) as found:
        stack.start()
    assert str(found.value) == (
        f"cannot use {tmp_path}/logs: no space left on device; make room on that disk and start"
        " again: what was stored is kept"
    )
    assert not disk.lacks_room("cannot use /data: permission denied")
