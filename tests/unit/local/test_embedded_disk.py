"""Room on the disks of the embedded PostgreSQL."""

import shutil
from pathlib import Path

import pytest

from service.local import disk


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
