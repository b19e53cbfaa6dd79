"""Switches of fail points, in a file that the processes of a deployment share.

Whoever wants a process to fail sets a switch; the first process that reaches that point
takes it back and does what it says: raises, stands still, or dies. For tests only: without
`PALIMPSEST_FAIL_POINTS` there is no such file, and nothing ever fails on purpose.
"""

import fcntl
import mmap
import os
import signal
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

import structlog

from service.domain import fail_points
from service.domain.fail_points import FailPoint

_log = structlog.get_logger("palimpsest.fail_points")


class Action(IntEnum):
    """What a process does at a point."""

    NOTHING = 0
    #: Raises FailedOnPurpose.
    RAISE = 1
    #: Stands still, the whole process, for the switch's seconds.
    SLEEP = 2
    #: Is killed by SIGKILL.
    KILL = 3


class FailedOnPurpose(Exception):
    """A process was told to fail here; the message names the point."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Counts:
    """What has become of a point."""

    #: How often a process came there.
    reached: int
    #: How often it failed there.
    failed: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Firing:
    """A process failed on purpose."""

    point: FailPoint
    action: Action
    #: Of the process.
    pid: int
    #: Of `time.monotonic()`, which all processes of a machine share.
    at: float


#: Of each point: action, seconds to stand still, times reached, times failed.
_SWITCH = struct.Struct("<idqq")
#: Of each firing: point, action, process, time.
_FIRING = struct.Struct("<iiqd")
_POINTS = {point: number for number, point in enumerate(FailPoint)}
_BY_NUMBER = tuple(FailPoint)


class Switches:
    """The switches of all points, seen by every process that opens the same file.

    Next to it, in `PATH.fired`, stands everything that fired.
    """

    def __init__(self, path: Path) -> None:
        """Opens the files, and makes them when there are none."""
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        size = _SWITCH.size * len(_POINTS)
        os.ftruncate(self._file, size)
        self._map = mmap.mmap(self._file, size)
        log = path.with_name(path.name + ".fired")
        self._fired = os.open(log, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)

    def close(self) -> None:
        """Leaves the files as they are."""
        self._map.close()
        os.close(self._file)
        os.close(self._fired)

    def set(self, point: FailPoint, action: Action, *, seconds: float = 0.0) -> None:
        """The next process at `point` does this, once."""
        with self._locked():
            _, _, reached, failed = self._read(point)
            self._write(point, action, seconds, reached, failed)

    def is_set(self, point: FailPoint) -> bool:
        """Whether nobody has come to `point` since it was set."""
        with self._locked():
            return self._read(point)[0] != Action.NOTHING

    def counts(self, point: FailPoint) -> Counts:
        """What has become of `point`, in all processes together."""
        with self._locked():
            _, _, reached, failed = self._read(point)
        return Counts(reached=reached, failed=failed)

    def firings(self, after: int = 0) -> list[Firing]:
        """All that fired behind the first `after`, in their order."""
        with self._locked():
            size = os.fstat(self._fired).st_size
            raw = os.pread(self._fired, size, after * _FIRING.size)
        return [
            Firing(point=_BY_NUMBER[number], action=Action(action), pid=pid, at=at)
            for number, action, pid, at in _FIRING.iter_unpack(raw)
        ]

    def act(self, point: FailPoint) -> None:
        """What a process does that is at `point`. Raises FailedOnPurpose."""
        with self._locked():
            action, seconds, reached, failed = self._read(point)
            failed += action != Action.NOTHING
            self._write(point, Action.NOTHING, 0.0, reached + 1, failed)
            if action != Action.NOTHING:
                # Before it acts: who is killed writes nothing any more.
                fired = (_POINTS[point], action, os.getpid(), time.monotonic())
                os.write(self._fired, _FIRING.pack(*fired))
        match Action(action):
            case Action.RAISE:
                raise FailedOnPurpose(f"told to fail at {point.value}")
            case Action.SLEEP:
                # The whole process, as one that is swapped out or stopped.
                time.sleep(seconds)
            case Action.KILL:
                os.kill(os.getpid(), signal.SIGKILL)
            case Action.NOTHING:
                pass

    @contextmanager
    def _locked(self) -> Iterator[None]:
        # Of the process: its threads do not keep each other out, and no two of them act.
        fcntl.lockf(self._file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.lockf(self._file, fcntl.LOCK_UN)

    def _read(self, point: FailPoint) -> tuple[int, float, int, int]:
        action, seconds, reached, failed = _SWITCH.unpack_from(self._map, self._at(point))
        return action, seconds, reached, failed

    def _write(
        self, point: FailPoint, action: int, seconds: float, reached: int, failed: int
    ) -> None:
        _SWITCH.pack_into(self._map, self._at(point), action, seconds, reached, failed)

    def _at(self, point: FailPoint) -> int:
        return _POINTS[point] * _SWITCH.size


def install(path: Path) -> None:
    """This process fails from now on where the switches at `path` say so."""
    _log.warning("this process fails on purpose", switches=str(path))
    fail_points.act(Switches(path).act)
