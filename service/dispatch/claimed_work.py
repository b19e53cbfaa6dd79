"""Keeps what one worker has claimed until the claims are released."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from uuid import uuid4

import structlog

from service.dispatch.turns import Turns
from service.domain.values.fault_hook import boundary
from service.domain.values.work_items import WorkItem
from storage.engine.tasks import cancel
from storage.memories.queue import Done, WorkClass

_log = structlog.get_logger("palimpsest.dispatch")

#: Works on an item. Returns the seconds after which a worker tries it again, 0 for at once but
#: after others; None when there is no more to do. Raises NotNow.
Handler = Callable[[WorkItem], Awaitable[float | None]]

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


class ClaimedWork:
    """The items of one worker: those worked on, those held back, and those that are done."""

    def __init__(
        self,
        handler: Handler,
        concurrency: int,
        *,
        wake: Callable[[], None],
        come_back: Callable[[float], None],
    ) -> None:
        """`wake` is called when a claim is to be released, `come_back` with the seconds after
        which the worker should query for work."""
        self.worker = uuid4()
        #: Whether the database knows that it lives.
        self.known = False
        self.turns = Turns(concurrency)
        self._handler = handler
        self._concurrency = concurrency
        self._wake = wake
        self._come_back = come_back
        self._running: dict[WorkItem, tuple[WorkClass, asyncio.Task[float | None]]] = {}
        self._held: set[WorkItem] = set()
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
        return [work_class for work_class, _ in self._running.values()]

    @property
    def items(self) -> Sequence[WorkItem]:
        """Returns all items that other workers must not claim."""
        return [*self._running, *self._held, *self._done]

    def begin(self, work_class: WorkClass, item: WorkItem) -> None:
        """Works on a claimed item, unless it is here: then the claim was lost, not the work.

        A crash of the database or a failover loses all claims.
        """
        if item in self._running or item in self._held or item in self._done:
            return
        task = asyncio.create_task(self._work(item))
        self._running[item] = work_class, task
        task.add_done_callback(lambda _: self._end_one(item))

    async def _work(self, item: WorkItem) -> float | None:
        boundary("work", "begun")
        seconds = await self._handler(item)
        boundary("work", "ended")
        return seconds

    def _end_one(self, item: WorkItem) -> None:
        _, task = self._running.pop(item)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, NotNow):
            self._hold(item, error.seconds)
        elif error is not None:
            # The item comes back; the worker goes on.
            _log.error("work failed", item=item.lock, exc_info=error, **item.log_fields)
            self._hold(item, FAILED_SECONDS)
        elif self._comes_too_often(item):
            _log.warning("work is claimed again too often", item=item.lock)
            self._hold(item, COUNT_SECONDS)
        else:
            seconds = 0 if task.cancelled() else task.result()
            if seconds:
                self._come_back(seconds)
            self._give_back(item, more=seconds is not None)

    def _comes_too_often(self, item: WorkItem) -> bool:
        now = asyncio.get_running_loop().time()
        if now > self._counted_since + COUNT_SECONDS:
            self._counts.clear()
            self._counted_since = now
        self._counts[item] += 1
        return self._counts[item] > MOST_TURNS

    def _hold(self, item: WorkItem, seconds: float) -> None:
        self._held.add(item)
        if self._is_ending:
            self._release_held(item)
            return
        asyncio.get_running_loop().call_later(seconds, self._release_held, item)

    def _release_held(self, item: WorkItem) -> None:
        if item in self._held:
            self._held.remove(item)
            self._give_back(item, more=True)

    def _give_back(self, item: WorkItem, *, more: bool) -> None:
        self._done[item] = Done(item=item, more=more)
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
        tasks = [task for _, task in self._running.values()]
        if tasks and seconds:
            await asyncio.wait(tasks, timeout=seconds)
        await cancel(tasks)
