"""Bounds the memory of messages that open streams have sent in part.

A stream whose next message is awaited may send all of it but the last byte, and gRPC does not
report that. A producer may be idle for long, so the number of such streams is no bound.
What can be seen is that the memory of this process grows.
"""

import asyncio
import ctypes
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

#: How often memory is measured while streams wait. At 1 GB/s 50 MB arrive meanwhile.
LOOK_SECONDS = 0.05
#: After so many times as long the memory of closed streams is free.
_FREED_LOOKS = 4
#: For so long a connection whose streams were closed has no more than calls have.
OVERDRAWN_SECONDS = 60.0

#: What a process has in memory, on Linux.
_STATM = Path("/proc/self/statm")
#: The fields of glibc's `struct mallinfo2`, see mallinfo(3).
_FIELDS = (
    *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
    *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
)


class _Heap(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in _FIELDS]


def _heap_meter() -> Callable[[], int]:
    """Returns a function that measures the bytes allocated by C code; always 0 without glibc.

    It takes some 20 ms where a gigabyte was freed in small parts.
    """
    try:
        mallinfo2 = ctypes.CDLL(None).mallinfo2
    except (AttributeError, OSError, TypeError):
        return lambda: 0
    mallinfo2.restype = _Heap

    def allocated() -> int:
        heap = mallinfo2()
        return int(heap.uordblks + heap.hblkhd)

    return allocated


def _resident() -> int:
    """Returns the bytes that this process has in memory: what it allocated, and has freed."""
    try:
        pages = int(_STATM.read_text().split()[1])
    except FileNotFoundError:
        # Not on Linux. There is no glibc either.
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


class StreamGuard:
    """Closes streams that wait for a message once memory has grown by `max_bytes`.

    Those of the connection with the most such streams go first, then of twice as many
    connections at each look. Once all are closed no further message is read for a moment.
    Memory that is still there then was not theirs, and counts as the new beginning. `others`
    returns the bytes of what has bounds of its own: messages of other calls, and chunks that wait
    to be written. A connection whose streams were closed is overdrawn for `overdrawn_seconds`:
    `Receiving` then gives its streams fewer places.
    """

    def __init__(
        self,
        *,
        max_bytes: int,
        others: Callable[[], int] = lambda: 0,
        allocated: Callable[[], int] | None = None,
        resident: Callable[[], int] = _resident,
        overdrawn_seconds: float = OVERDRAWN_SECONDS,
    ) -> None:
        self._max_bytes = max_bytes
        self._overdrawn_seconds = overdrawn_seconds
        #: Until when, in the event loop's time.
        self._overdrawn: dict[str, float] = {}
        self._others = others
        self._allocated = allocated or _heap_meter()
        self._resident = resident
        self._waiting: dict[str, set[asyncio.Timeout]] = {}
        #: Allocated bytes that are not of streams, and resident bytes at the last look at them.
        self._least = self._allocated()
        self._seen = resident()
        #: Connections whose streams are closed at the next look, if need be.
        self._next = 1
        self._timer: asyncio.TimerHandle | None = None
        #: Set while messages are read.
        self._reading = asyncio.Event()
        self._reading.set()

    def is_overdrawn(self, connection: str) -> bool:
        """Returns whether streams of the connection held more than there is for all."""
        until = self._overdrawn.get(connection)
        if until is None:
            return False
        if until > asyncio.get_running_loop().time():
            return True
        del self._overdrawn[connection]
        return False

    @asynccontextmanager
    async def waiting(self, connection: str, seconds: float) -> AsyncIterator[None]:
        """Waits for a message of a stream. Raises TimeoutError where it has to close."""
        async with asyncio.timeout(seconds) as scope:
            await self._reading.wait()
            self._waiting.setdefault(connection, set()).add(scope)
            if self._timer is None:
                self._later()
            try:
                yield
            finally:
                self._forget(connection, scope)

    def _forget(self, connection: str, scope: asyncio.Timeout) -> None:
        scopes = self._waiting.get(connection, set())
        scopes.discard(scope)
        if not scopes:
            self._waiting.pop(connection, None)

    def _later(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look)

    def _look(self) -> None:
        self._timer = None
        if not self._waiting:
            return
        resident = self._resident()
        self._seen = min(self._seen, resident)
        # What fits into freed memory makes the process no larger.
        if self._next > 1 or resident - self._seen > self._max_bytes // 4:
            self._seen = resident
            self._judge()
        if self._timer is None:
            self._later()

    def _judge(self) -> None:
        allocated = self._allocated()
        if allocated - self._least <= self._max_bytes + self._others():
            self._least = min(self._least, allocated)
            self._next = 1
            return
        if self._next >= len(self._waiting):
            self._reading.clear()
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(_FREED_LOOKS * LOOK_SECONDS, self._begin_anew)
        self._close(self._next)
        self._next *= 2

    def _begin_anew(self) -> None:
        """Goes on reading once the memory of all closed streams is free."""
        allocated = self._allocated()
        if allocated - self._least > self._max_bytes + self._others():
            self._least = allocated
            self._overdrawn.clear()
        self._next = 1
        self._reading.set()
        self._later()

    def _close(self, connections: int) -> None:
        now = asyncio.get_running_loop().time()
        self._overdrawn = {who: until for who, until in self._overdrawn.items() if until > now}
        heaviest = sorted(self._waiting.items(), key=lambda one: len(one[1]), reverse=True)
        for connection, scopes in heaviest[:connections]:
            self._overdrawn[connection] = now + self._overdrawn_seconds
            for scope in scopes:
                if not scope.expired():
                    scope.reschedule(now)
