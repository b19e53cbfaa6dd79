"""The worker: handles the dispatcher's items, and does periodic work that no item stands for."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

import structlog

from service.app.method_registry import MethodRegistry
from service.dispatch.claimed_work import NotNow
from service.dispatch.queue import QueueDispatcher
from service.domain.values.work_items import WorkItem, WorkKind
from service.llm.gateway.bulkhead import LOOK_SECONDS as BULKHEAD_LOOK_SECONDS
from service.llm.gateway.bulkhead import Bulkhead
from service.settings.config import Config
from service.telemetry import logs
from service.usecases.access.source_changes import LOOK_SECONDS as SOURCE_SECONDS
from service.usecases.access.source_changes import SourceChanger
from service.usecases.answers.answer import Answerer
from service.usecases.answers.cancelling import LOOK_SECONDS
from service.usecases.log.wake_ups import WakeUps
from service.usecases.memories.recovery import LOOK_SECONDS as RECOVERY_LOOK_SECONDS
from service.usecases.memories.recovery import Recovery
from service.usecases.operations.deleting import Remover
from service.usecases.operations.retention import LOOK_SECONDS as RETENTION_LOOK_SECONDS
from service.usecases.operations.retention import Retainer
from service.usecases.operations.tenant_removal import LOOK_SECONDS as TENANT_SECONDS
from service.usecases.operations.tenant_removal import TenantRemover
from service.usecases.prism.schemas import Generator
from service.usecases.search.index import Indexer
from storage.engine import sweeping
from storage.engine.database import Database
from storage.engine.errors import StorageError
from storage.engine.signals import Signals
from storage.engine.tasks import Preemption, cancel
from storage.memories import work
from storage.memories.queue import RECENT_SECONDS, forget_tenants

_log = structlog.get_logger("palimpsest.worker")

#: Sessions that one search for unindexed words returns.
WORDS_ITEMS = 1000
#: What failed because the database is unreachable waits for so many seconds.
UNREACHABLE_SECONDS = 2.0
#: How often a worker, from its start on, looks for sessions without vectors of its model.
NOTE_SECONDS = 3600.0
#: How often entries of memories without a vector are looked for.
NOTE_ENTRIES_SECONDS = 5.0
#: How often it removes contexts of traces, results of requests, and operations that are old.
FORGET_SECONDS = 60.0


class Worker:
    """One worker process. Any number of them may run."""

    def __init__(
        self,
        database: Database,
        signals: Signals,
        dispatcher: QueueDispatcher,
        wake_ups: WakeUps,
        methods: MethodRegistry,
        answerer: Answerer,
        generator: Generator,
        indexer: Indexer,
        remover: Remover,
        retainer: Retainer,
        tenant_remover: TenantRemover,
        source_changer: SourceChanger,
        bulkhead: Bulkhead,
        recovery: Recovery,
        config: Config,
    ) -> None:
        self._database = database
        self._signals = signals
        self._dispatcher = dispatcher
        self._wake_ups = wake_ups
        self._methods = methods
        self._answerer = answerer
        self._generator = generator
        self._indexer = indexer
        self._remover = remover
        self._retainer = retainer
        self._tenant_remover = tenant_remover
        self._source_changer = source_changer
        self._bulkhead = bulkhead
        self._recovery = recovery
        self._config = config
        self._stop: asyncio.Event | None = None
        #: Ends the turn of an item that is worked on.
        self._turns: dict[WorkItem, Preemption] = {}

    async def run(self, stop: asyncio.Event) -> None:
        """Works until `stop` is set, and then ends what it began within `stop_seconds`."""
        self._stop = stop
        loops = [
            asyncio.create_task(self._end_turns(stop)),
            asyncio.create_task(self._signals.run()),
            asyncio.create_task(self._wake_ups.run()),
            asyncio.create_task(self._every(self._config.reconcile_seconds, self._find_words)),
            asyncio.create_task(self._every(self._config.sweep_seconds, self._sweep)),
            asyncio.create_task(self._every(NOTE_SECONDS, self._indexer.note_all)),
            asyncio.create_task(self._every(NOTE_ENTRIES_SECONDS, self._indexer.note_entries)),
            asyncio.create_task(self._every(FORGET_SECONDS, self._forget)),
            asyncio.create_task(self._every(RETENTION_LOOK_SECONDS, self._retainer.look)),
            asyncio.create_task(self._every(TENANT_SECONDS, self._tenant_remover.look)),
            asyncio.create_task(self._every(SOURCE_SECONDS, self._source_changer.look)),
            asyncio.create_task(self._every(LOOK_SECONDS, self._answerer.active.look)),
            asyncio.create_task(self._every(BULKHEAD_LOOK_SECONDS, self._bulkhead.look)),
            asyncio.create_task(self._every(RECOVERY_LOOK_SECONDS, self._recovery.look)),
        ]
        try:
            await self._dispatcher.run(
                self.handle,
                concurrency=self._config.worker_concurrency,
                stop=stop,
                stop_seconds=self._config.stop_seconds,
                give_way=self.give_way,
            )
        finally:
            await cancel(loops)
            # So that other workers continue at once with what this one leaves.
            await self._wake_ups.flush()

    async def handle(self, item: WorkItem) -> float | None:
        """Works on one item; returns the seconds after which it is due again, or None.

        Raises NotNow if the database is unreachable. What waits for a model that does not reply
        and has no slot is released.
        """
        turn = self._turns[item] = Preemption()
        if self._is_stopping:
            turn.set()
        with logs.about(**item.log_fields):
            try:
                seconds = await self._bulkhead.run(
                    self._work_on(item, turn), release=partial(self._release, item)
                )
                if seconds == 0 and not self._is_stopping:
                    # Other items go first, new ones included.
                    await self._defer(item, -RECENT_SECONDS)
            except StorageError as error:
                _log.warning("work deferred", item=item.lock, cause=str(error))
                raise NotNow(UNREACHABLE_SECONDS) from error
            finally:
                del self._turns[item]
            return seconds

    def give_way(self, item: WorkItem) -> bool:
        """Ends the turn of an item that is worked on, after what it has begun.

        Returns False for one that is worked on as a whole.
        """
        turn = self._turns.get(item)
        if turn is None or item.kind in (WorkKind.ANSWER, WorkKind.SCHEMA):
            return False
        turn.request()
        return True

    async def _end_turns(self, stop: asyncio.Event) -> None:
        await stop.wait()
        for turn in self._turns.values():
            turn.set()

    async def _work_on(self, item: WorkItem, turn: Preemption) -> float | None:
        if item.kind is WorkKind.INDEX:
            return await self._indexer.index(item, stop=turn)
        if item.kind is WorkKind.REMOVAL:
            return await self._remover.remove(item, stop=turn)
        if item.kind is WorkKind.MEMORY:
            return await self._methods.drain(item, stop=turn)
        made = self._answerer if item.kind is WorkKind.ANSWER else self._generator
        await made.make(item)
        return None

    async def _release(self, item: WorkItem, seconds: float) -> None:
        """Gives an item back, for any worker to claim after so many seconds."""
        await self._defer(item, seconds)
        _log.info("work released", item=item.lock, seconds=round(seconds, 1))

    async def _defer(self, item: WorkItem, seconds: float) -> None:
        async with self._database.transaction(item.tenant_id, name="queue") as tx:
            await work.defer(tx, item, seconds)

    @property
    def _is_stopping(self) -> bool:
        return self._stop is not None and self._stop.is_set()

    async def _find_words(self) -> None:
        """Finds sessions that wait for their vectors' time and have chunks without words."""
        async with self._database.sweeping(name="queue") as tx:
            items = await work.without_words(tx, WORDS_ITEMS)
        if items:
            await self._dispatcher.offer(items)

    async def _sweep(self) -> None:
        freed = await self._dispatcher.sweep()
        if freed:
            _log.warning("freed what dead workers held", items=freed)

    async def _forget(self) -> None:
        await sweeping.sweep(self._database)
        await forget_tenants(self._database)

    async def _every(self, seconds: float, look: Callable[[], Awaitable[object]]) -> None:
        is_deferred = False
        while True:
            try:
                await look()
                if is_deferred:
                    _log.warning("look done again", look=look.__name__)
                is_deferred = False
            except StorageError as error:
                # An outage is one line, however often it is tried again.
                if not is_deferred:
                    said = "look deferred; trying again"
                    _log.warning(said, look=look.__name__, cause=str(error))
                is_deferred = True
            except Exception:
                # The loop is the guarantee that work is found: it must outlive
                # whatever one look runs into.
                _log.exception("look failed", look=look.__name__)
            await asyncio.sleep(seconds)
