"""Builds trees in a pipeline: reads ahead, makes many nodes at once, stores them in order.

Nothing waits for a round to end: text is read while models think, a node is begun as soon
as what it is made of is there and a call is free, and what is made is stored meanwhile.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from service.domain.tree.planning import Planned, TreePlan
from service.domain.tree.summarizing import Summary
from storage.engine.errors import StorageError
from storage.engine.tasks import begin_part

#: Leaves that are planned ahead and not stored, for each call that may be under way.
WINDOW = 4
#: One in so many of the calls that may be under way is begun in addition, so that the model
#: has work while the results of others are stored.
AHEAD = 2
#: As soon as so many nodes can be stored they are; fewer after so many seconds, or when no
#: call is under way.
STORE_NODES = 64
STORE_SECONDS = 1.0
#: Pauses between queries of a log that was read to its end: they grow from the first to the
#: longest; while no call is under way there are none.
FIRST_LOOK_SECONDS = 0.05
MAX_LOOK_SECONDS = 1.0
#: A turn is at least as long as so many calls, one after the other: at its end the calls
#: that are free wait for those under way, and with a slow model that is most of the time.
TURN_CALLS = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class LogRead:
    """The result of a query of the log."""

    #: Whether there was anything new.
    came: bool
    #: Whether that is all there is for now.
    is_all: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class PipelineSteps:
    """What a pipeline does with a plan."""

    #: Plans what the log has next.
    read: Callable[[], Coroutine[Any, Any, LogRead]]
    #: Makes the summary of a node.
    make: Callable[[Planned], Coroutine[Any, Any, Summary]]
    #: Stores nodes; the second argument says that nothing else is known to be done.
    store: Callable[[Sequence[Planned], bool], Coroutine[Any, Any, None]]


class Pipeline:
    """Makes what a plan holds, once."""

    def __init__(self, plan: TreePlan, steps: PipelineSteps, *, concurrency: int) -> None:
        """`concurrency` is how many calls are with the model at once; `make` sees to that."""
        self._plan = plan
        self._steps = steps
        self._concurrency = concurrency
        self._loop = asyncio.get_running_loop()
        self._making: dict[asyncio.Task[Summary], tuple[Planned, float]] = {}
        #: Seconds of the longest call so far.
        self._longest = 0.0
        self._began = self._loop.time()
        self._reading: asyncio.Task[LogRead] | None = None
        self._storing: asyncio.Task[None] | None = None
        self._storing_count = 0
        self._stored_at = self._loop.time()
        self._look_seconds = FIRST_LOOK_SECONDS
        self._look_at = self._loop.time()
        self._has_read_all = False
        self._halted = False
        self._failed: list[tuple[Planned, Exception]] = []

    async def run(self, *, stop: asyncio.Event | None, until: float) -> bool:
        """Runs until everything that the log has is stored; returns False when it ended before.

        When `stop` is set and at `until` (the loop's time; later where calls take long) no
        other node is begun, and when one fails none after it; those that are under way are
        finished, since they are paid for, and what can be stored is. Raises then what `make`
        raised for the first of those that failed, in their order; and at once what `store`
        and `read` raise, and StorageError.
        """
        self._halted = self._loop.time() >= until or (stop is not None and stop.is_set())
        stopping = None if stop is None else asyncio.create_task(stop.wait())
        try:
            while self._go_on():
                if self._making:
                    begin_part(stop)
                await self._wait(stopping, until)
        finally:
            await self._end(stopping)
        if self._failed:
            (_, error), *others = sorted(self._failed, key=lambda failed: failed[0].order)
            for planned, _ in others:
                self._plan.put_back(planned)
            raise error
        return not self._halted

    def _go_on(self) -> bool:
        """Begins what can be begun; returns whether anything is under way."""
        self._begin_nodes()
        if self._may_read():
            self._reading = asyncio.create_task(self._steps.read())
        if self._storing is None and self._seconds_to_store() == 0:
            self._begin_storing()
        return bool(self._making or self._reading or self._storing)

    def _begin_nodes(self) -> None:
        while len(self._making) < self._concurrency + self._concurrency // AHEAD:
            planned = self._next()
            if planned is None:
                return
            task = asyncio.create_task(self._steps.make(planned))
            self._making[task] = (planned, self._loop.time())

    def _next(self) -> Planned | None:
        if self._halted:
            return None
        if self._failed:
            # What can be stored without the node that failed is worth its calls.
            return self._plan.next_before(min(planned.order for planned, _ in self._failed))
        return self._plan.next()

    def _may_read(self) -> bool:
        if self._reading is not None or self._ends or not self._has_room:
            return False
        if not self._has_read_all:
            return True
        return bool(self._making) and self._loop.time() >= self._look_at

    def _seconds_to_store(self) -> float | None:
        """Returns the seconds until what is ready is stored; None while nothing is."""
        ready = self._plan.storable()
        if not ready:
            return None
        if len(ready) >= STORE_NODES or not self._making:
            return 0
        return max(self._stored_at + STORE_SECONDS - self._loop.time(), 0)

    @property
    def _has_room(self) -> bool:
        """Returns whether more leaves may be planned."""
        return self._plan.leaves < WINDOW * self._concurrency

    @property
    def _ends(self) -> bool:
        """Returns whether nothing more is read."""
        return self._halted or bool(self._failed)

    def _begin_storing(self) -> None:
        ready = self._plan.storable()
        last = self._has_read_all and not self._ends and not self._reading
        last = last and len(ready) == self._plan.unstored
        self._storing = asyncio.create_task(self._steps.store(ready, last))
        self._storing_count = len(ready)

    async def _wait(self, stopping: "asyncio.Task[Any] | None", until: float) -> None:
        tasks: list[asyncio.Task[Any]] = list(self._making)
        tasks += [task for task in (self._reading, self._storing) if task is not None]
        if stopping is not None and not self._halted:
            tasks.append(stopping)
        await asyncio.wait(
            tasks, timeout=self._patience(until), return_when=asyncio.FIRST_COMPLETED
        )
        for task in [task for task in self._making if task.done()]:
            self._take_summary(task, *self._making.pop(task))
        if self._reading is not None and self._reading.done():
            reading, self._reading = self._reading, None
            self._take_look(reading.result())
        if self._storing is not None and self._storing.done():
            storing, self._storing = self._storing, None
            storing.result()
            self._plan.stored(self._storing_count)
            self._stored_at = self._loop.time()
        stopped = stopping is not None and stopping.done()
        if stopped or self._seconds_left(until) == 0:
            self._halted = True

    def _patience(self, until: float) -> float | None:
        """Returns how long to wait for what is under way before trying to begin something."""
        now = self._loop.time()
        left = None if self._halted else self._seconds_left(until)
        times = [] if left is None else [left]
        may_look = not self._reading and not self._ends and self._has_room
        if self._has_read_all and may_look and self._making:
            times.append(self._look_at - now)
        if self._storing is None:
            store = self._seconds_to_store()
            times += [] if store is None else [store]
        return max(min(times), 0) if times else None

    def _seconds_left(self, until: float) -> float | None:
        """Returns the seconds left of the turn; None until the first call has ended."""
        if self._making and not self._longest:
            return None
        end = max(until, self._began + TURN_CALLS * self._longest)
        return max(end - self._loop.time(), 0)

    def _take_summary(self, task: "asyncio.Task[Summary]", planned: Planned, began: float) -> None:
        self._longest = max(self._longest, self._loop.time() - began)
        try:
            self._plan.finish(planned, task.result())
        except StorageError:
            raise
        except Exception as error:
            # A poisoned text must not sink its neighbours, which are paid for.
            self._failed.append((planned, error))

    def _take_look(self, look: LogRead) -> None:
        again = not look.came and self._has_read_all
        seconds = self._look_seconds * 2 if again else FIRST_LOOK_SECONDS
        self._look_seconds = min(seconds, MAX_LOOK_SECONDS)
        self._look_at = self._loop.time() + self._look_seconds
        self._has_read_all = look.is_all

    async def _end(self, stopping: "asyncio.Task[Any] | None") -> None:
        """Cancels all that still runs; `run` reports errors."""
        tasks: list[asyncio.Task[Any] | None] = [*self._making, self._reading, self._storing]
        running = [task for task in (*tasks, stopping) if task is not None]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
