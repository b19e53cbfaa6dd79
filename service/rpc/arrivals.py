"""Bounds the calls whose first message has not arrived yet, and the memory that they use.

gRPC buffers an incomplete message of up to `max_message_bytes` once the server reads from its
call, and one HTTP/2 window before. So the server reads from few calls at once.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from service.domain.values.errors import DeadlineExceeded, Exhausted
from service.domain.values.reasons import Reason
from service.usecases.log.concurrency_limiter import BUSY_RETRY_SECONDS

#: After so many seconds a message that is still incomplete gives its place to a call that
#: waits for one.
PATIENT_SECONDS = 1.0


@dataclass(slots=True, eq=False)
class _Arrival:
    """A call whose message is awaited."""

    connection: str
    scope: asyncio.Timeout
    #: In the event loop's time; of its place, once it has one.
    since: float
    #: Done once it has a place.
    turn: "asyncio.Future[None]" = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    #: Whether it had to make room for another.
    evicted: bool = False


class Arrivals:
    """A bounded number of places to read first messages, shared fairly by connections.

    A call of a connection that has fewer places takes that of the slowest call of the
    connection that has most. So clients that send incomplete messages delay only their own calls.
    """

    def __init__(self, *, places: int, waiting: int, seconds: float) -> None:
        self._places = places
        self._max_waiting = waiting
        self._seconds = seconds
        #: By connection, oldest first.
        self._reading: dict[str, dict[_Arrival, None]] = {}
        self._waiting: dict[str, deque[_Arrival]] = {}
        self._read = 0
        self._waits = 0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def reading(self) -> int:
        """How many messages are read now."""
        return self._read

    @asynccontextmanager
    async def place(self, connection: str) -> AsyncIterator[None]:
        """Gives a place to read the first message of a call.

        Raises DeadlineExceeded (REQUEST_INCOMPLETE) when the message takes too long, and
        Exhausted (TOO_MANY_CALLS) when the call has to make room for another.
        """
        now = asyncio.get_running_loop().time()
        scope = asyncio.timeout(self._seconds)
        arrival = _Arrival(connection=connection, scope=scope, since=now)
        try:
            async with scope:
                self._come(arrival)
                await arrival.turn
                yield
        except TimeoutError as error:
            if arrival.evicted:
                raise _too_many(self._places) from error
            raise DeadlineExceeded(
                Reason.REQUEST_INCOMPLETE,
                f"the message of this call did not come within {self._seconds:g} seconds:"
                " send it again",
                {"limit_seconds": f"{self._seconds:g}"},
            ) from error
        finally:
            self._leave(arrival)

    def _come(self, arrival: _Arrival) -> None:
        """Gives the arrival a place, or lets it wait for one."""
        if self._read < self._places:
            self._seat(arrival)
            return
        heaviest = max(self._reading.values(), key=len)
        if len(heaviest) > len(self._reading.get(arrival.connection, ())) + 1:
            self._evict(next(iter(heaviest)))
            self._seat(arrival)
            return
        if self._waits >= self._max_waiting:
            longest = max(self._waiting.values(), key=len)
            if len(longest) <= len(self._waiting.get(arrival.connection, ())) + 1:
                raise _too_many(self._max_waiting)
            self._evict(longest[-1])
        self._waiting.setdefault(arrival.connection, deque()).append(arrival)
        self._waits += 1
        if self._timer is None:
            self._later()

    def _seat(self, arrival: _Arrival) -> None:
        arrival.since = asyncio.get_running_loop().time()
        self._reading.setdefault(arrival.connection, {})[arrival] = None
        self._read += 1
        arrival.turn.set_result(None)

    def _evict(self, arrival: _Arrival) -> None:
        """Ends the wait for a message; its place is free at once."""
        self._forget(arrival)
        if not arrival.scope.expired():
            arrival.evicted = True
            arrival.scope.reschedule(asyncio.get_running_loop().time())

    def _leave(self, arrival: _Arrival) -> None:
        """Frees the place, and gives it to the connection that has the fewest."""
        self._forget(arrival)
        while self._waits and self._read < self._places:
            fewest = min(self._waiting, key=lambda one: len(self._reading.get(one, ())))
            following = self._waiting[fewest][0]
            self._forget(following)
            if not following.turn.done():
                self._seat(following)

    def _forget(self, arrival: _Arrival) -> None:
        reading = self._reading.get(arrival.connection, {})
        if arrival in reading:
            del reading[arrival]
            self._read -= 1
            if not reading:
                del self._reading[arrival.connection]
            return
        waiting = self._waiting.get(arrival.connection, ())
        if waiting and arrival in waiting:
            waiting.remove(arrival)
            self._waits -= 1
            if not waiting:
                del self._waiting[arrival.connection]

    def _later(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(PATIENT_SECONDS, self._hurry)

    def _hurry(self) -> None:
        """Ends what has been read for long, as much of it as there are calls that wait."""
        self._timer = None
        if not self._waits:
            return
        before = asyncio.get_running_loop().time() - PATIENT_SECONDS
        slow = [one for reading in self._reading.values() for one in reading if one.since <= before]
        for one in sorted(slow, key=lambda one: one.since)[: self._waits]:
            self._evict(one)
            # Their tasks end later; the places are free now.
            self._leave(one)
        self._later()


def _too_many(limit: int) -> Exhausted:
    return Exhausted(
        Reason.TOO_MANY_CALLS,
        "this server waits for the messages of too many calls; send the call again at once whole",
        {"limit": limit},
        retry_seconds=BUSY_RETRY_SECONDS,
    )
