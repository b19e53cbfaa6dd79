"""What a checkup says of a server that takes no writes, and of a disk."""

import pytest

from service.domain.checkup import LOW_DISK_BYTES, Level, judge_disk, judge_writes


@pytest.mark.parametrize(
    ("standby", "read_only", "waiting", "level", "said"),
    [
        (False, False, 0, Level.OK, "the server takes writes"),
        (True, True, 0, Level.BAD, "the server is a standby and takes no writes"),
        (False, True, 0, Level.BAD, "the server takes no writes"),
        (False, False, 1, Level.WARN, "1 commit waiting for a synchronous standby"),
        (False, False, 3, Level.WARN, "3 commits waiting for a synchronous standby"),
    ],
)
def test_whether_writes_are_taken(
    standby: bool, read_only: bool, waiting: int, level: Level, said: str
) -> None:
    found = judge_writes(is_standby=standby, is_read_only=read_only, waiting=waiting)
    assert (found.level, found.said) == (level, said)
    assert bool(found.advice) == (level is not Level.OK)


@pytest.mark.parametrize(
    ("free", "is_full", "level", "said"),
    [
        (LOW_DISK_BYTES, False, Level.OK, "2,048 MB free at /d"),
        (LOW_DISK_BYTES - 1, False, Level.WARN, "2,048 MB free at /d"),
        (1024, True, Level.BAD, "full: 0 MB free at /d"),
    ],
)
def test_how_full_a_disk_is(free: int, is_full: bool, level: Level, said: str) -> None:
    found = judge_disk("/d", free, is_full=is_full)
    assert (found.level, found.said) == (level, said)
