"""Where a worker can be killed, and the memory that all processes of a run share."""

import mmap
import os
import signal
import struct
from enum import IntEnum


class Point(IntEnum):
    """The steps of a call, from the first to the last, and no step at all."""

    NOWHERE = 0
    BEFORE_INTENT = 1
    INTENT_UNCOMMITTED = 2
    INTENT_COMMITTED = 3
    ORDER_HALF_SENT = 4
    ORDER_SENT = 5
    AT_PROVIDER = 6
    REPLIED = 7
    REPLY_UNCOMMITTED = 8
    REPLY_STORED = 9
    COPIED = 10
    REPLY_RECEIVED = 11
    APPLY_UNCOMMITTED = 12
    APPLIED = 13
    #: Wherever it is after a time that the schedule says.
    ANYWHERE = 14


_STATE = struct.Struct("ii")


class Trap:
    """Says where the next worker dies; in memory that forked processes share."""

    def __init__(self) -> None:
        self._shared = mmap.mmap(-1, mmap.PAGESIZE)

    def set(self, point: Point) -> None:
        """The next worker dies there."""
        self._write(point, 0)

    def enter(self) -> None:
        """This process is the worker now."""
        point, _ = self._read()
        self._write(point, os.getpid())

    def wants(self, point: Point) -> bool:
        """Whether the worker is to die there."""
        wanted, worker = self._read()
        return wanted == point and worker != 0

    def spring(self, point: Point) -> bool:
        """Kills the worker if it is to die there, from whatever process; whether it did."""
        if not self.wants(point):
            return False
        _, worker = self._read()
        self._write(Point.NOWHERE, 0)
        os.kill(worker, signal.SIGKILL)
        return True

    def _read(self) -> tuple[int, int]:
        point, worker = _STATE.unpack_from(self._shared, 0)
        return point, worker

    def _write(self, point: int, worker: int) -> None:
        _STATE.pack_into(self._shared, 0, point, worker)
