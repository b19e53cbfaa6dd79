"""The worker: is woken for what there is to do, and looks for what nobody woke it for."""

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from service.config import Config
from service.dispatch.port import Dispatcher
from service.domain.fail_points import FailPoint, reach
from service.domain.work import WorkItem, WorkKind
from service.llm.patience import LOOK_SECONDS as SILENCE_LOOK_SECONDS
from service.llm.patience import Patience
from service.usecases.advance import Advancer
from service.usecases.answer import Answerer
from service.usecases.cancelling import LOOK_SECONDS
from service.usecases.generate import Generator
from service.usecases.hints import Hints
from service.usecases.index import Indexer
from service.usecases.recovery import LOOK_SECONDS as RECOVERY_LOOK_SECONDS
from service.usecases.recovery import Recovery
from storage import work
from storage.database import Database
from storage.errors import StorageError

_log = structlog.get_logger("palimpsest.worker")

#: Items that one look of the reconciler brings back, of each kind.
RECONCILE_ITEMS = 1000
#: How long a sweep may take: where hints are kept may stand still, and come back.
SWEEP_PATIENCE_SECONDS = 30.0
#: Items that a worker brings back by itself at the most.
MAX_COMING = 10_000
#: How often a worker, from its start on, looks for sessions without vectors of its model.
NOTE_SECONDS = 3600.0


class Worker:
    """One worker process. Any number of them may run."""

    def __init__(
        self,
        database: Database,
        dispatcher: Dispatcher,
        hints: Hints,
        advancer: Advancer,
        answerer: Answerer,
        generator: Generator,
        indexer: Indexer,
        patience: Patience,
        recovery: Recovery,
        config: Config,
    ) -> None:
        self._database = database
        self._dispatcher = dispatcher
        self._hints = hints
        self._advancer = advancer
        self._answerer = answerer
        self._generator = generator
        self._indexer = indexer
        self._patience = patience
        self._recovery = recovery
        self._config = config
        self._stop: asyncio.Event | None = None
        #: What comes back by itself, and when; each item once, the soonest counts.
        self._coming: dict[WorkItem, asyncio.TimerHandle] = {}

    async def run(self, stop: asyncio.Event) -> None:
        """Works until `stop` is set, and then ends what it began within `stop_seconds`."""
        self._stop = stop
        loops = [
            asyncio.create_task(self._hints.run()),
            asyncio.create_task(self._every(self._config.reconcile_seconds, self._reconcile)),
            asyncio.create_task(self._every(self._config.sweep_seconds, self._sweep)),
            asyncio.create_task(self._every(NOTE_SECONDS, self._indexer.note_all)),
            asyncio.create_task(self._every(LOOK_SECONDS, self._answerer.in_hand.look)),
            asyncio.create_task(self._every(SILENCE_LOOK_SECONDS, self._patience.look)),
            asyncio.create_task(self._every(RECOVERY_LOOK_SECONDS, self._recovery.look)),
        ]
        try:
            await self._dispatcher.run(
                self.handle,
                concurrency=self._config.worker_concurrency,
                stop=stop,
                stop_seconds=self._config.stop_seconds,
            )
        finally:
            for loop in loops:
                loop.cancel()
            await asyncio.gather(*loops, return_exceptions=True)
            # What this one leaves others go on with at once.
            await self._hints.flush()

    async def handle(self, item: WorkItem) -> None:
        """Works on one item. What fails for want of a database is brought back later, and so
        is what waits for a model that does not reply and has no place."""
        try:
            reach(FailPoint.WORK_BEGUN)
            seconds = await self._patience.run(self._work_on(item))
            if seconds is not None:
                await self._let_go(item, seconds)
        except StorageError as error:
            _log.warning("work put off", item=item.lock, cause=str(error))
        except asyncio.CancelledError:
            # Its time to stop is up. A call under way goes on in the caller.
            self._hints.add([item])
            raise

    async def _work_on(self, item: WorkItem) -> None:
        if item.kind is WorkKind.ANSWER:
            await self._answerer.make(item)
        elif item.kind is WorkKind.SCHEMA:
            await self._generator.make(item)
        elif item.kind is WorkKind.INDEX:
            self._come_back(item, await self._indexer.index(item, stop=self._stop))
        else:
            self._come_back(item, await self._advancer.drain(item, stop=self._stop))

    async def _let_go(self, item: WorkItem, seconds: float) -> None:
        """Leaves an item for so long, of any worker; the reconciler brings it back."""
        async with self._database.transaction(item.tenant_id) as tx:
            await work.put_off(tx, item, seconds)
        _log.info("work let go", item=item.lock, seconds=round(seconds, 1))

    def _come_back(self, item: WorkItem, seconds: float | None) -> None:
        if seconds is None:
            return
        if seconds == 0 or self._is_stopping:
            # A stopping worker does not wait for anything: whoever takes it next does.
            self._hints.add([item])
            return
        loop = asyncio.get_running_loop()
        known = self._coming.get(item)
        if known is not None and known.when() <= loop.time() + seconds:
            return
        if known is not None:
            known.cancel()
        elif len(self._coming) >= MAX_COMING:
            # Lost, or lost with this process, it is found by the reconciler.
            return
        self._coming[item] = loop.call_later(seconds, self._bring_back, item)

    def _bring_back(self, item: WorkItem) -> None:
        del self._coming[item]
        self._hints.add([item])

    @property
    def _is_stopping(self) -> bool:
        return self._stop is not None and self._stop.is_set()

    async def _reconcile(self) -> None:
        """The guarantee behind the hints: finds all that could be worked on now."""
        async with self._database.sweeping() as connection:
            items = [
                *await work.runnable(connection, RECONCILE_ITEMS),
                *await work.unindexed(connection, RECONCILE_ITEMS),
            ]
        if items:
            reach(FailPoint.RECONCILE_FOUND)
            await self._dispatcher.hint(items)
            reach(FailPoint.RECONCILED)

    async def _sweep(self) -> None:
        async with asyncio.timeout(SWEEP_PATIENCE_SECONDS):
            freed = await self._dispatcher.sweep()
        if freed:
            _log.warning("freed what dead workers held", items=freed)

    async def _every(self, seconds: float, look: Callable[[], Awaitable[object]]) -> None:
        while True:
            try:
                await look()
            except StorageError as error:
                _log.warning("look put off", look=look.__name__, cause=str(error))
            except Exception:
                # The loop is the guarantee that work is found: it must outlive
                # whatever one look runs into.
                _log.exception("look failed", look=look.__name__)
            await asyncio.sleep(seconds)
