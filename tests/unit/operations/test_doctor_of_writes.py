"""What the doctor says of a server that takes no writes, and of a disk."""

import pytest

from service.domain.operations.doctor import (
    LOW_DISK_BYTES,
    Severity,
    judge_disk,
    judge_writes,
)


@pytest.mark.parametrize(
    ("standby", "read_only", "waiting", "level", "said"),
    [
        (False, False, 0, Severity.OK, "the server takes writes"),
        (True, True, 0, Severity.BAD, "the server is a standby and takes no writes"),
        (False, True, 0, Severity.BAD, "the server takes no writes"),
        (False, False, 1, Severity.WARN, "1 commit waiting for a synchronous standby"),
        (False, False, 3, Severity.WARN, "3 commits waiting for a synchronous standby"),
    ],
)
def test_whether_writes_are_taken(
    standby: bool, read_only: bool, waiting: int, level: Severity, said: str
) -> None:
    found = judge_writes(is_standby=standby, is_read_only=read_only, waiting=waiting)
    assert (found.level, found.said) == (level, said)
    assert bool(found.advice) == (level is not Severity.OK)


@pytest.mark.parametrize(
    ("free", "is_full", "level", "said"),
    [
        (LOW_DISK_BYTES, False, Severity.OK, "2,048 MB free at /d"),
        (LOW_DISK_BYTES - 1, False, Severity.WARN, "2,048 MB free at /d"),
        (1024, True, Severity.BAD, "full: 0 MB free at /d"),
    ],
)
def test_how_full_a_disk_is(free: int, is_full: bool, level: Severity, said: str) -> None:
    found = judge_disk("/d", free, is_full=is_full)
    assert (found.level, found.said) == (level, said)
