"""Bounds the memory of messages that open streams have sent in part.

A stream whose next message is awaited may send all of it but the last byte, and gRPC tells
nothing of that. A producer may be idle for long, so the number of such streams is no bound.
What can be seen is that the memory of this process grows.
"""

import asyncio
import ctypes
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

#: How often memory is measured while streams wait. 1 GB/s brings 50 MB meanwhile.
LOOK_SECONDS = 0.05

_FIELDS = ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks")
_MORE_FIELDS = ("fsmblks", "uordblks", "fordblks", "keepcost")


class _Heap(ctypes.Structure):
    """`struct mallinfo2` of glibc, see mallinfo(3)."""

    _fields_ = [(name, ctypes.c_size_t) for name in (*_FIELDS, *_MORE_FIELDS)]


def _heap_meter() -> Callable[[], int]:
    """Returns what tells the bytes that C code has allocated; always 0 without glibc."""
    try:
        mallinfo2 = ctypes.CDLL(None).mallinfo2
    except (AttributeError, OSError, TypeError):
        return lambda: 0
    mallinfo2.restype = _Heap

    def allocated() -> int:
        heap = mallinfo2()
        return int(heap.uordblks + heap.hblkhd)

    return allocated


class StreamGuard:
    """Closes streams that wait for a message once memory has grown by `max_bytes`.

    Those of the connection with the most such streams go first, then of twice as many
    connections at each look. Where memory stays as it is without them, it was not theirs, and
    counts as the new beginning.
    """

    def __init__(self, *, max_bytes: int, measure: Callable[[], int] | None = None) -> None:
        self._max_bytes = max_bytes
        self._measure = measure or _heap_meter()
        self._waiting: dict[str, set[asyncio.Timeout]] = {}
        self._least = 0
        #: Connections whose streams are closed at the next look, if need be.
        self._next = 1
        self._timer: asyncio.TimerHandle | None = None

    @asynccontextmanager
    async def waiting(self, connection: str, seconds: float) -> AsyncIterator[None]:
        """Waits for a message of a stream. Raises TimeoutError where it has to close."""
        async with asyncio.timeout(seconds) as scope:
            if not self._waiting:
                self._least = self._measure()
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
        allocated = self._measure()
        if allocated - self._least <= self._max_bytes:
            self._least = min(self._least, allocated)
            self._next = 1
        elif self._next > 2 * len(self._waiting):
            self._least = allocated
            self._next = 1
        else:
            self._close(self._next)
            self._next *= 2
        self._later()

    def _close(self, connections: int) -> None:
        now = asyncio.get_running_loop().time()
        heaviest = sorted(self._waiting.values(), key=len, reverse=True)[:connections]
        for scope in [scope for scopes in heaviest for scope in scopes]:
            if not scope.expired():
                scope.reschedule(now)
