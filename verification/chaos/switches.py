"""Switches of points, in a file that the processes of a deployment share.

A test that wants a process to fail sets a switch; the first process that reaches that point
clears it and does what it says: raises, sleeps, or dies. A process of the service takes
part when `PALIMPSEST_FAULTS` names `install` of this module, and SWITCHES its file.
"""

import fcntl
import mmap
import os
import signal
import struct
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from service.domain.values import fault_hook
from verification.chaos.points import Point, points

#: The variable that names the file.
SWITCHES = "FAULT_SWITCHES"


class Action(IntEnum):
    """What a process does at a point."""

    NOTHING = 0
    #: Raises FailedOnPurpose.
    RAISE = 1
    #: Sleeps, the whole process, for the switch's seconds.
    SLEEP = 2
    #: Is killed by SIGKILL.
    KILL = 3


class FailedOnPurpose(Exception):
    """A process fails here on purpose; the message names the point."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Counts:
    """What has become of a point."""

    #: How often a process reached it.
    reached: int
    #: How often it failed there.
    failed: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Firing:
    """A process failed on purpose."""

    point: Point
    action: Action
    #: The process that fired.
    pid: int
    #: A time of `time.monotonic()`, which all processes of a machine share.
    at: float


#: A point: its name, action, how many that reach it pass before, seconds to sleep, times
#: reached, times failed.
_SWITCH = struct.Struct("<48siidqq")
#: A firing: number of the point, action, process, time.
_FIRING = struct.Struct("<iiqd")


class Switches:
    """The switches of all points, seen by every process that opens the same file.

    Next to it, in `PATH.fired`, is everything that fired.
    """

    def __init__(self, path: Path) -> None:
        """Opens the files, and makes them, with all points, when there are none."""
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        with self._locked():
            if not os.fstat(self._file).st_size:
                os.write(self._file, b"".join(_unset(point) for point in points()))
        size = os.fstat(self._file).st_size
        self._map = mmap.mmap(self._file, size)
        # From the file: a process of the service need not read the source for them.
        names = [_SWITCH.unpack_from(self._map, at)[0] for at in range(0, size, _SWITCH.size)]
        self._points = [name.rstrip(b"\0").decode() for name in names]
        self._numbers = {point: number for number, point in enumerate(self._points)}
        log = path.with_name(path.name + ".fired")
        self._fired = os.open(log, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)

    def close(self) -> None:
        """Leaves the files as they are."""
        self._map.close()
        os.close(self._file)
        os.close(self._fired)

    def set(self, point: Point, action: Action, *, seconds: float = 0.0, skip: int = 0) -> None:
        """Makes the next process at `point`, or the one after `skip` others, do this once."""
        with self._locked():
            *_, reached, failed = self._read(point)
            self._write(point, action, skip, seconds, reached, failed)

    def is_set(self, point: Point) -> bool:
        """Returns whether it has not fired since it was set."""
        with self._locked():
            return self._read(point)[0] != Action.NOTHING

    def counts(self, point: Point) -> Counts:
        """Returns what has become of `point`, in all processes together."""
        with self._locked():
            *_, reached, failed = self._read(point)
        return Counts(reached=reached, failed=failed)

    def firings(self, after: int = 0) -> list[Firing]:
        """Returns all that fired after the first `after`, in their order."""
        with self._locked():
            size = os.fstat(self._fired).st_size
            raw = os.pread(self._fired, size, after * _FIRING.size)
        return [
            Firing(point=self._points[number], action=Action(action), pid=pid, at=at)
            for number, action, pid, at in _FIRING.iter_unpack(raw)
        ]

    def act(self, point: Point) -> None:
        """Does what is set for a process at `point`. Raises FailedOnPurpose."""
        if point not in self._numbers:
            return
        with self._locked():
            action, skip, seconds, reached, failed = self._read(point)
            if action != Action.NOTHING and skip:
                self._write(point, action, skip - 1, seconds, reached + 1, failed)
                return
            failed += action != Action.NOTHING
            self._write(point, Action.NOTHING, 0, 0.0, reached + 1, failed)
            if action != Action.NOTHING:
                # Before it acts: a killed process writes nothing any more.
                fired = (self._numbers[point], action, os.getpid(), time.monotonic())
                os.write(self._fired, _FIRING.pack(*fired))
        match Action(action):
            case Action.RAISE:
                raise FailedOnPurpose(f"told to fail at {point}")
            case Action.SLEEP:
                # The whole process, as one that is swapped out or stopped.
                time.sleep(seconds)
            case Action.KILL:
                os.kill(os.getpid(), signal.SIGKILL)
            case Action.NOTHING:
                pass

    @contextmanager
    def _locked(self) -> Iterator[None]:
        # The lock is the process's: its threads do not exclude each other, and only one acts.
        fcntl.lockf(self._file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.lockf(self._file, fcntl.LOCK_UN)

    def _read(self, point: Point) -> tuple[int, int, float, int, int]:
        _, action, skip, seconds, reached, failed = _SWITCH.unpack_from(self._map, self._at(point))
        return action, skip, seconds, reached, failed

    def _write(
        self, point: Point, action: int, skip: int, seconds: float, reached: int, failed: int
    ) -> None:
        state = (point.encode(), action, skip, seconds, reached, failed)
        _SWITCH.pack_into(self._map, self._at(point), *state)

    def _at(self, point: Point) -> int:
        return self._numbers[point] * _SWITCH.size


def _unset(point: Point) -> bytes:
    name = point.encode()
    assert len(name) <= _SWITCH.size - struct.calcsize("<iidqq"), f"{point} is too long"
    return _SWITCH.pack(name, 0, 0, 0.0, 0, 0)


def environment(path: Path) -> Mapping[str, str]:
    """Returns the variables that have a process of the service fail where the switches say."""
    return {"PALIMPSEST_FAULTS": f"{__name__}:install", SWITCHES: str(path)}


def install() -> None:
    """Makes this process fail from now on where the switches of its environment say so."""
    fault_hook.install(Switches(Path(os.environ[SWITCHES])).act)
