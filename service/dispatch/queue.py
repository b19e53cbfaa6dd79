"""Dispatches work straight from the tables that have it: workers claim what is runnable.

There is no queue to fill and empty, so none can disagree with the tables. A worker with free
slots queries the work classes of `storage.memories.queue` when a wake-up arrives, when a slot
becomes free, when something that it put off is due, and every `look_seconds` in any case. When it
has none, it asks an item to give way to another tenant that waits.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from itertools import islice

import structlog

from service.dispatch.claimed_work import ClaimedWork, GiveWay, Handler
from service.domain.values.work_items import WorkItem
from storage.engine.database import Database
from storage.engine.errors import StorageError
from storage.memories import queue
from storage.memories.queue import NOBODY, ClaimedItem, QueueBatch, WorkClass

_log = structlog.get_logger("palimpsest.dispatch")

#: Pause after a query that failed.
RETRY_SECONDS = 1.0
#: Pause after a query that left tenants out.
MORE_SECONDS = 0.05
#: Timers of one worker, at most; work that is due without one is found a little later.
MAX_DUE = 10_000


class QueueDispatcher:
    """Gives work to workers.

    Two workers may get the same item without harm: the epoch is the fencing token.
    """

    def __init__(
        self,
        database: Database,
        *,
        heartbeat_seconds: float,
        dead_after_seconds: float,
        look_seconds: float,
    ) -> None:
        self._database = database
        self._heartbeat_seconds = heartbeat_seconds
        self._dead_after_seconds = dead_after_seconds
        self._look_seconds = look_seconds
        self._some = asyncio.Event()
        self._due = 0
        self._offered: dict[WorkItem, None] = {}

    def wake(self) -> None:
        """Queries for work at once."""
        self._some.set()

    async def wake_up(self, items: Sequence[WorkItem]) -> None:
        """Wakes the workers. Call it after the commit that made the work.

        A wake-up may be lost, which is logged; the work is then found a little later. Never
        raises for an unreachable database.
        """
        if not items:
            return
        try:
            await self._database.notify([(queue.CHANNEL, "")], name="queue.hint")
        except StorageError as error:
            _log.warning("wake-ups lost; workers find the work by themselves", cause=str(error))

    async def want(self, memories: Sequence[WorkItem]) -> None:
        """Gives priority to memories that a client waits for. May be lost, as a wake-up."""
        if not memories:
            return
        try:
            await queue.want(self._database, memories)
        except StorageError as error:
            _log.warning("memories not given priority", cause=str(error))

    async def offer(self, items: Sequence[WorkItem]) -> None:
        """Replaces the items that are claimed as soon as there are slots, though no work class has
        them."""
        self._offered = dict.fromkeys(items)
        self._some.set()

    async def run(
        self,
        handler: Handler,
        *,
        concurrency: int,
        stop: asyncio.Event,
        stop_seconds: float,
        give_way: GiveWay | None = None,
    ) -> None:
        """Calls `handler` for items with work, at most `concurrency` at once, until `stop`.

        Handlers may then end within `stop_seconds` before they are cancelled; when `run` itself
        is cancelled, so are they. A lost database only interrupts it.
        """
        claimed = ClaimedWork(
            *(handler, concurrency),
            wake=self._some.set,
            come_back=self._come_back,
            give_way=give_way,
        )
        stopping = asyncio.create_task(stop.wait())
        stopping.add_done_callback(lambda _: self._some.set())
        beating = asyncio.create_task(self._beat(claimed))
        try:
            while not stop.is_set():
                seconds = await self._fill(claimed)
                # wait_for of Python 3.11 loses a cancellation that comes together with what it
                # waits for.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(seconds):
                        await self._some.wait()
        finally:
            stopping.cancel()
            await self._end(claimed, stop_seconds if stop.is_set() else 0)
            beating.cancel()
            await asyncio.gather(stopping, beating, return_exceptions=True)
            await self._leave(claimed)

    async def _fill(self, claimed: ClaimedWork) -> float:
        """Releases what is done, and claims as much as there are slots for.

        Returns the seconds after which to query again.
        """
        self._some.clear()
        if not claimed.known:
            # Until it is known that this worker lives, others free what it claims.
            return self._look_seconds
        try:
            return await self._take(claimed)
        except StorageError as error:
            _log.warning("no work taken", cause=str(error))
        except Exception:
            # The worker must outlive a defect: what it claimed without knowing is released.
            _log.exception("no work taken")
        return RETRY_SECONDS

    async def _take(self, claimed: ClaimedWork) -> float:
        free = claimed.free
        scan = claimed.turns.scan(free, claimed.work_classes) if free else None
        done = claimed.release()
        taken = QueueBatch(items=(), ended=NOBODY, more=False)
        if done or scan is not None:
            try:
                taken = await queue.take(self._database, claimed.worker, done=done, scan=scan)
            except Exception:
                # It is released with the next query.
                claimed.keep(done)
                raise
            for one in taken.items:
                claimed.begin(one)
            claimed.turns.count(taken)
            await self._take_offered(claimed)
        if claimed.is_full:
            await self._make_room(claimed)
        return MORE_SECONDS if taken.more and not taken.items else self._look_seconds

    async def _make_room(self, claimed: ClaimedWork) -> None:
        """Asks an item to give way if another tenant waits."""
        tenants = claimed.yielding_to
        if tenants is not None and await queue.waits(self._database, tenants):
            claimed.give_way()

    async def _take_offered(self, claimed: ClaimedWork) -> None:
        # As many as of their work class: slots are reserved for what a client waits for.
        room = min(claimed.free, claimed.turns.bound(claimed.work_classes).items)
        items = list(islice(self._offered, room))
        if not items:
            return
        chosen = await queue.claim(self._database, claimed.worker, items)
        for item in items:
            # What others have claimed is offered again, if it has to be.
            self._offered.pop(item, None)
        for item in chosen:
            claimed.begin(ClaimedItem(work_class=WorkClass.INDEX, item=item, charged=0.0))

    def _come_back(self, seconds: float) -> None:
        """Queries again after so many seconds."""
        if self._due < MAX_DUE:
            self._due += 1
            asyncio.get_running_loop().call_later(seconds, self._is_due)

    def _is_due(self) -> None:
        self._due -= 1
        self._some.set()

    async def _beat(self, claimed: ClaimedWork) -> None:
        while True:
            try:
                await queue.beat(self._database, claimed.worker, claimed.items)
            except StorageError as error:
                _log.warning("heartbeat not written", cause=str(error))
            except Exception:
                # Without a heartbeat others would take over what is claimed here.
                _log.exception("heartbeat not written")
            else:
                if not claimed.known:
                    claimed.known = True
                    self._some.set()
            await asyncio.sleep(self._heartbeat_seconds)

    async def _end(self, claimed: ClaimedWork, seconds: float) -> None:
        """Waits for handlers to end, and meanwhile releases what is done."""
        async with asyncio.TaskGroup() as tasks:
            giving_back = tasks.create_task(self._give_back(claimed))
            await claimed.end(seconds)
            # What it has not released goes with the rest.
            giving_back.cancel()

    async def _give_back(self, claimed: ClaimedWork) -> None:
        """Releases what is done without claiming more, until it is cancelled."""
        while True:
            await self._some.wait()
            self._some.clear()
            done = claimed.release()
            if not done:
                continue
            try:
                await queue.take(self._database, claimed.worker, done=done, scan=None)
                # So that others go on with it at once.
                await self._database.notify([(queue.CHANNEL, "")], name="queue.hint")
                continue
            except StorageError as error:
                _log.warning("claims not released", cause=str(error))
            except Exception:
                # The handlers must end in their time, whatever is wrong here.
                _log.exception("claims not released")
            claimed.keep(done)
            await asyncio.sleep(RETRY_SECONDS)
            self._some.set()

    async def _leave(self, claimed: ClaimedWork) -> None:
        try:
            await queue.leave(self._database, claimed.worker)
            # So that others go on with its work at once.
            await self._database.notify([(queue.CHANNEL, "")], name="queue.hint")
        except StorageError as error:
            _log.warning("not signed off; its items are freed later", cause=str(error))

    async def sweep(self) -> int:
        """Frees the items of dead workers; returns how many. For any worker, about every second."""
        try:
            freed = await queue.sweep(self._database, dead_after_seconds=self._dead_after_seconds)
        except StorageError as error:
            _log.warning("dead workers not swept", cause=str(error))
            return 0
        if freed:
            self._some.set()
        return freed
