"""Looks up what verifies credentials: in a cache, and in batches, whatever clients send."""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Generic, TypeVar

from service.domain.values.errors import Exhausted
from service.domain.values.reasons import Reason

V = TypeVar("V")

#: Ids of one query.
BATCH = 100
#: Ids that wait for a query at once. One query runs at a time, so that clients with invented
#: credentials cost the database no more than that.
MAX_WAITING = 1000
#: Ids that are remembered; those that were used least recently are forgotten first.
MAX_KNOWN = 10_000


class CachedLookups(Generic[V]):
    """Remembers for a while what was found under an id, or that nothing was."""

    def __init__(
        self,
        load: Callable[[Sequence[str]], Awaitable[Mapping[str, V]]],
        *,
        seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`load` returns what is found under ids. `seconds`: how long that is trusted."""
        self._load = load
        self._seconds = seconds
        self._clock = clock
        #: What was found, and until when it is trusted.
        self._known: OrderedDict[str, tuple[V | None, float]] = OrderedDict()
        self._waiting: dict[str, asyncio.Future[V | None]] = {}
        self._task: asyncio.Task[None] | None = None

    async def find(self, id: str) -> V | None:
        """Returns what is under an id. Raises Exhausted, StorageError."""
        known = self._known.get(id)
        if known is not None and known[1] > self._clock():
            self._known.move_to_end(id)
            return known[0]
        waiting = self._waiting.get(id)
        if waiting is None:
            if len(self._waiting) >= MAX_WAITING:
                raise Exhausted(
                    Reason.TOO_MANY_CALLS,
                    "too many calls wait for their credentials to be looked up: call again",
                    {"limit": MAX_WAITING},
                )
            waiting = self._waiting[id] = asyncio.get_running_loop().create_future()
            if self._task is None:
                self._task = asyncio.create_task(self._look_up())
        # Others wait for the same: one that is cancelled leaves it to them.
        return await asyncio.shield(waiting)

    def forget(self) -> None:
        """Looks everything up anew the next time: this process has changed something."""
        self._known.clear()

    async def _look_up(self) -> None:
        try:
            while self._waiting:
                await self._batch(list(self._waiting)[:BATCH])
        finally:
            self._task = None

    async def _batch(self, ids: Sequence[str]) -> None:
        error: BaseException | None = None
        found: Mapping[str, V] = {}
        # What changes after the query began is not known by it.
        until = self._clock() + self._seconds
        try:
            found = await self._load(ids)
        except BaseException as raised:
            error = raised
            if not isinstance(raised, Exception):
                raise
        finally:
            for id in ids:
                self._end(id, found.get(id), error, until)

    def _end(self, id: str, found: V | None, error: BaseException | None, until: float) -> None:
        waiting = self._waiting.pop(id)
        if error is not None:
            waiting.set_exception(error)
            # Those that waited may all be gone.
            waiting.exception()
            return
        waiting.set_result(found)
        self._known[id] = (found, until)
        self._known.move_to_end(id)
        while len(self._known) > MAX_KNOWN:
            self._known.popitem(last=False)
