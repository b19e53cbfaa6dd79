"""Keeps what one worker has claimed until the claims are released."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from uuid import UUID, uuid4

import structlog

from service.dispatch.turns import Turns, gives_way
from service.domain.values.fault_hook import boundary
from service.domain.values.work_items import WorkItem
from storage.engine.tasks import cancel
from storage.memories.queue import ClaimedItem, Done, WorkClass

_log = structlog.get_logger("palimpsest.dispatch")

#: Works on an item. Returns the seconds after which a worker tries it again, 0 for at once but
#: after others; None when there is no more to do. Raises NotNow.
Handler = Callable[[WorkItem], Awaitable[float | None]]

#: Ends the turn of an item as soon as it can be continued later. Returns whether it can.
GiveWay = Callable[[WorkItem], bool]

#: An item whose handler failed is not claimed again before so many seconds.
FAILED_SECONDS = 2.0
#: An item that was claimed so often within COUNT_SECONDS waits for as long: what always comes
#: back must not keep a worker from the rest.
MOST_TURNS = 100
COUNT_SECONDS = 1.0


class NotNow(Exception):
    """An item cannot be worked on for so many seconds: no worker claims it meanwhile."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"not for {seconds} s")
        self.seconds = seconds


@dataclass(frozen=True, kw_only=True, slots=True)
class _Running:
    """An item that is worked on."""

    work_class: WorkClass
    #: What its tenant was charged, in seconds of a slot.
    charged: float
    #: The event loop's time at which it began.
    began: float
    task: asyncio.Task[float | None]


class ClaimedWork:
    """The items of one worker: those worked on, those held back, and those that are done."""

    def __init__(
        self,
        handler: Handler,
        concurrency: int,
        *,
        wake: Callable[[], None],
        come_back: Callable[[float], None],
        give_way: GiveWay | None = None,
    ) -> None:
        """`wake` is called when a claim is to be released, `come_back` with the seconds after
        which the worker should query for work. Without `give_way` no item gives way."""
        self.worker = uuid4()
        #: Whether the database knows that it lives.
        self.known = False
        self.turns = Turns(concurrency)
        self._handler = handler
        self._concurrency = concurrency
        self._wake = wake
        self._come_back = come_back
        self._give_way = give_way
        #: The longest first.
        self._running: dict[WorkItem, _Running] = {}
        #: The item that was asked to give way, while it is worked on.
        self._leaving: WorkItem | None = None
        self._held: dict[WorkItem, Done] = {}
        self._is_ending = False
        self._done: dict[WorkItem, Done] = {}
        self._counts: Counter[WorkItem] = Counter()
        self._counted_since = 0.0

    @property
    def free(self) -> int:
        """Returns the free slots."""
        return self._concurrency - len(self._running)

    @property
    def work_classes(self) -> Iterable[WorkClass]:
        """Returns the work class of each item that is worked on."""
        return [one.work_class for one in self._running.values()]

    @property
    def is_full(self) -> bool:
        """Returns whether there are items that it could not claim."""
        return not self.free or not self.turns.bound(self.work_classes).items

    @property
    def items(self) -> Sequence[WorkItem]:
        """Returns all items that other workers must not claim."""
        return [*self._running, *self._held, *self._done]

    def begin(self, claimed: ClaimedItem) -> None:
        """Works on a claimed item, unless it is here: then the claim was lost, not the work.

        A crash of the database or a failover loses all claims.
        """
        item = claimed.item
        if item in self._running or item in self._held or item in self._done:
            return
        task = asyncio.create_task(self._work(item))
        self._running[item] = _Running(
            work_class=claimed.work_class,
            charged=claimed.charged,
            began=asyncio.get_running_loop().time(),
            task=task,
        )
        task.add_done_callback(lambda _: self._end_one(item))

    @property
    def yielding_to(self) -> Collection[UUID] | None:
        """Returns the tenants for which no item gives way; None: it does for no tenant now."""
        if self._give_way is None or not self._running or self._leaving in self._running:
            return None
        return gives_way(item.tenant_id for item in self._running)[1]

    def give_way(self) -> None:
        """Ends the turn of an item of the tenant with the most slots."""
        if self._give_way is None or not self._running:
            return
        tenant, _ = gives_way(item.tenant_id for item in self._running)
        for item in self._running:
            if item.tenant_id == tenant and self._give_way(item):
                self._leaving = item
                return

    async def _work(self, item: WorkItem) -> float | None:
        boundary("work", "begun")
        seconds = await self._handler(item)
        boundary("work", "ended")
        return seconds

    def _end_one(self, item: WorkItem) -> None:
        running = self._running.pop(item)
        task = running.task
        gave_way = item == self._leaving
        if gave_way:
            self._leaving = None
        slot_seconds = asyncio.get_running_loop().time() - running.began
        done = Done(item=item, more=True, seconds=slot_seconds, charged=running.charged)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, NotNow):
            self._hold(done, error.seconds)
        elif error is not None:
            # The item comes back; the worker goes on.
            _log.error("work failed", item=item.lock, exc_info=error, **item.log_fields)
            self._hold(done, FAILED_SECONDS)
        elif not gave_way and self._comes_too_often(item):
            _log.warning("work is claimed again too often", item=item.lock)
            self._hold(done, COUNT_SECONDS)
        else:
            seconds = 0 if task.cancelled() else task.result()
            if seconds:
                self._come_back(seconds)
            self._give_back(replace(done, more=seconds is not None))

    def _comes_too_often(self, item: WorkItem) -> bool:
        now = asyncio.get_running_loop().time()
        if now > self._counted_since + COUNT_SECONDS:
            self._counts.clear()
            self._counted_since = now
        self._counts[item] += 1
        return self._counts[item] > MOST_TURNS

    def _hold(self, done: Done, seconds: float) -> None:
        self._held[done.item] = done
        if self._is_ending:
            self._release_held(done.item)
            return
        asyncio.get_running_loop().call_later(seconds, self._release_held, done.item)

    def _release_held(self, item: WorkItem) -> None:
        if item in self._held:
            self._give_back(self._held.pop(item))

    def _give_back(self, done: Done) -> None:
        self._done[done.item] = done
        self._wake()

    def release(self) -> Sequence[Done]:
        """Returns the claims to release; the caller releases them."""
        done, self._done = self._done, {}
        return list(done.values())

    def keep(self, done: Iterable[Done]) -> None:
        """Keeps claims that could not be released, for the next try."""
        self._done = {**{one.item: one for one in done}, **self._done}

    async def end(self, seconds: float) -> None:
        """Waits up to so many seconds for the handlers, and then cancels them.

        Releases at once what is held back: this worker will not return to it.
        """
        self._is_ending = True
        for item in list(self._held):
            self._release_held(item)
        tasks = [one.task for one in self._running.values()]
        if tasks and seconds:
            await asyncio.wait(tasks, timeout=seconds)
        await cancel(tasks)
