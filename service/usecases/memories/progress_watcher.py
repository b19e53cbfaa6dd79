"""Waits for what a read must see, on behalf of all calls of a process."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field
from itertools import islice, zip_longest
from uuid import UUID

import structlog

from service.domain.answers.answer_updates import NOTHING, AnswerUpdate, Listener, ListenerBatch
from service.domain.values.errors import NotFound, server_stopping
from service.domain.values.reasons import Reason
from service.domain.values.work_items import WorkItem, WorkKind
from service.settings.config import Limits
from service.usecases.log.concurrency_limiter import ConcurrencyLimiter
from storage.answers import texts
from storage.engine.database import Database
from storage.engine.errors import StorageError
from storage.memories import job_results
from storage.memories.progress import Progress, read_progress
from storage.search.finding import IndexProgress, read_index_progress

_log = structlog.get_logger("palimpsest.consistency")

#: The channel on which commits send the ids of what they changed, in hexadecimal.
CHANGES = "palimpsest_changes"
#: Changes within so long share one query.
GATHER_SECONDS = 0.01
#: How often all waits are checked without a notification, since one may have been lost.
MISSED_SECONDS = 1.0
#: How often priority is requested again for what is waited for: it expires after a while, and
#: with the end of a step, although that may have failed.
WANT_SECONDS = 20.0
#: Waits that one query is for, at most, and tenants that are queried at once.
LOOK_WAITS, LOOK_TENANTS = 256, 4

_Key = tuple[UUID, UUID]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Seen:
    """What one query found: by the ids of memories and sessions, and those that have ended."""

    progress: dict[UUID, Progress | IndexProgress] = field(default_factory=dict)
    settled: set[UUID] = field(default_factory=set)
    #: The news for listeners of answers.
    told: dict[Listener, ListenerBatch] = field(default_factory=dict)
    #: What was deleted.
    gone: set[UUID] = field(default_factory=set)


@dataclass(eq=False, kw_only=True, slots=True)
class _Wait:
    """A call that waits for a memory, an index, an answer or a schema."""

    item: WorkItem
    #: What is raised when it is deleted: the caller knows its names.
    deleted: NotFound
    #: Whether the memory is to be worked on for it.
    is_wanted: bool = False
    #: Set for a call that streams the answer as it is made.
    listener: Listener | None = None
    #: Whether there may be something that it has not seen.
    due: bool = True
    #: Done when the call is to go on; None while it does something else than wait.
    news: asyncio.Future[None] | None = None
    #: What the query found: how far the memory or the index is, or whether the answer or the schema
    #: has ended, and the news of the answer.
    progress: Progress | IndexProgress | None = None
    settled: bool = False
    found: ListenerBatch = NOTHING
    #: Whether it was deleted, alone or with its session.
    gone: bool = False

    @property
    def idle(self) -> bool:
        """Returns whether the call only waits."""
        return self.news is not None and not self.news.done()

    def show(self, seen: _Seen) -> None:
        """Ends the wait if a query found something new."""
        identity = self.item.item_id
        if identity in seen.gone or self._is_another(seen.progress.get(identity)):
            self.gone = True
            self.end()
            return
        progress = seen.progress.get(identity, self.progress)
        settled = identity in seen.settled
        found = NOTHING if self.listener is None else seen.told.get(self.listener, NOTHING)
        if progress != self.progress or settled or found != NOTHING:
            self.progress, self.settled, self.found = progress, settled, found
            self.end()

    def _is_another(self, progress: Progress | IndexProgress | None) -> bool:
        """Whether a memory or session was deleted, and one of its name was made since."""
        if progress is None or self.progress is None:
            return False
        return progress.created_at != self.progress.created_at

    def end(self) -> None:
        """Resumes the call."""
        if self.news is not None and not self.news.done():
            self.news.set_result(None)


class ProgressWatcher:
    """Waits for memories, indexes, answers and schemas on behalf of all calls of a process.

    A commit notifies this by `wake`, and the waits for what was changed are checked with one query
    for memories, one for indexes, and one for each kind of job. A notification may be lost, with
    the process that committed or with a connection: so all waits are also checked every
    MISSED_SECONDS. That query is the guarantee; notifications only save time. It also finds that
    a pause has ended by itself.

    Every wait raises Unavailable once the process stops, and `deleted`, which its caller gives it,
    once what it waits for is deleted.
    """

    def __init__(
        self,
        database: Database,
        *,
        reads: int = Limits().max_waiting_reads,
        want: Callable[[Sequence[WorkItem]], None] = lambda _: None,
    ) -> None:
        """At most `reads` reads wait at once; asks and watches have limits of their own.

        `want` receives each memory when a call begins to wait for it, to be worked on soon, and
        again every WANT_SECONDS.
        """
        self._database = database
        self._want = want
        #: Limits the reads that wait for what a memory does not have yet.
        self._reads = ConcurrencyLimiter(reads, reason=Reason.TOO_MANY_READS, what="reads")
        #: All that wait, by the id of what they wait for, in hexadecimal.
        self._waits: dict[str, set[_Wait]] = {}
        #: Waits that are checked next, in the order of arrival.
        self._due: dict[_Wait, None] = {}
        self._some_due = asyncio.Event()
        self._somebody = asyncio.Event()
        self._tenants = asyncio.Semaphore(LOOK_TENANTS)
        self._stopped = False
        # What this process commits itself.
        database.on_change(self.wake)

    async def stop(self) -> None:
        """Ends all waits, and later ones at once: clients go on at another server."""
        self._stopped = True
        for wait in self._all():
            wait.end()

    def wake(self, words: Sequence[str] | None) -> None:
        """Checks soon the waits for one of these ids; None: all."""
        if words is None:
            self._look_soon(self._all())
        else:
            for word in words:
                self._look_soon(self._waits.get(word, ()))

    async def progress(
        self,
        tenant_id: UUID,
        key: _Key,
        *,
        deleted: NotFound,
        deadline: float | None,
        is_wanted: bool = False,
    ) -> AsyncGenerator[Progress]:
        """Yields how far the memory is, now and at each change, until the deadline.

        `deadline` is in the event loop's time; None never ends. `is_wanted`: what it has not
        applied is waited for.
        """
        item = WorkItem(
            kind=WorkKind.MEMORY, tenant_id=tenant_id, session_key=key[0], item_id=key[1]
        )
        if is_wanted:
            self._want([item])
        with self._waiting(_Wait(item=item, deleted=deleted, is_wanted=is_wanted)) as wait:
            while await self._has_news(wait, deadline):
                assert isinstance(wait.progress, Progress), "that is what ends the wait"
                yield wait.progress

    async def progress_of_read(
        self, tenant_id: UUID, key: _Key, *, deleted: NotFound, deadline: float | None
    ) -> AsyncGenerator[Progress]:
        """As `progress`, for a read that waits. Raises Exhausted where too many do."""
        with self._reads.slot():
            looks = self.progress(
                tenant_id, key, deleted=deleted, deadline=deadline, is_wanted=True
            )
            async with aclosing(looks) as seen:
                async for progress in seen:
                    yield progress

    async def index_of_read(
        self, tenant_id: UUID, session_key: UUID, *, deleted: NotFound, deadline: float | None
    ) -> AsyncGenerator[IndexProgress]:
        """As `progress_of_read`, of the index of a session."""
        item = WorkItem(
            kind=WorkKind.INDEX, tenant_id=tenant_id, session_key=session_key, item_id=session_key
        )
        with self._reads.slot(), self._waiting(_Wait(item=item, deleted=deleted)) as wait:
            while await self._has_news(wait, deadline):
                assert isinstance(wait.progress, IndexProgress), "that is what ends the wait"
                yield wait.progress

    async def settled(self, item: WorkItem, *, deleted: NotFound, deadline: float | None) -> bool:
        """Waits until the item has ended; returns False when the deadline was first."""
        with self._waiting(_Wait(item=item, deleted=deleted)) as wait:
            return await self._has_news(wait, deadline)

    async def settled_of_read(
        self, item: WorkItem, *, every: float, deleted: NotFound, deadline: float | None
    ) -> AsyncGenerator[bool]:
        """Yields whether the item has ended, `every` so many seconds, until it has.

        Ends at the deadline. Raises Exhausted where too many reads wait.
        """
        now = asyncio.get_running_loop().time
        with self._reads.slot():
            is_settled = False
            while not is_settled and (deadline is None or now() < deadline):
                until = now() + every if deadline is None else min(now() + every, deadline)
                is_settled = await self.settled(item, deleted=deleted, deadline=until)
                yield is_settled

    async def told(
        self, listener: Listener, *, deleted: NotFound, deadline: float | None
    ) -> AsyncGenerator[AnswerUpdate]:
        """Yields the events of an answer, and its text if wanted, as they are written.

        The last update says that the answer has ended; without it the deadline was first.
        Any number of listeners may stream the same answer, each at its own pace.
        """
        with self._waiting(_Wait(item=listener.item, deleted=deleted, listener=listener)) as wait:
            while await self._has_news(wait, deadline):
                told = listener.take(wait.found, settled=wait.settled)
                wait.due |= told.more
                if told.events or told.pieces or told.settled:
                    yield told
                if told.settled:
                    return

    @contextmanager
    def _waiting(self, wait: _Wait) -> Iterator[_Wait]:
        """Registers a call that waits."""
        word = wait.item.item_id.hex
        self._waits.setdefault(word, set()).add(wait)
        self._somebody.set()
        try:
            yield wait
        finally:
            self._due.pop(wait, None)
            waits = self._waits[word]
            waits.remove(wait)
            if not waits:
                del self._waits[word]

    async def _has_news(self, wait: _Wait, deadline: float | None) -> bool:
        """Waits until a query has found something new; returns False at the deadline.

        Between two calls nothing is queried: for a client that does not read its stream, all its
        unread events would be read again and again.
        """
        loop = asyncio.get_running_loop()
        if deadline is not None and loop.time() >= deadline:
            return False
        wait.news = loop.create_future()
        if self._stopped:
            wait.end()
        elif wait.due:
            self._look_soon((wait,))
        try:
            async with asyncio.timeout_at(deadline):
                await wait.news
        except TimeoutError:
            return False
        finally:
            wait.news = None
        if self._stopped:
            raise server_stopping()
        if wait.gone:
            raise wait.deleted
        return True

    def _all(self) -> list[_Wait]:
        return [wait for waits in self._waits.values() for wait in waits]

    def _look_soon(self, waits: Iterable[_Wait]) -> None:
        for wait in waits:
            wait.due = True
            # A call that does something else is checked when it waits again.
            if wait.idle:
                self._due[wait] = None
                self._some_due.set()

    async def run(self) -> None:
        """Checks waits until it is cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._look_after_due())
            tasks.create_task(self._look_after_all())
            tasks.create_task(self._want_again())

    async def _look_after_due(self) -> None:
        while True:
            await self._some_due.wait()
            await asyncio.sleep(GATHER_SECONDS)
            waits = list(islice(self._due, LOOK_WAITS))
            by_tenant: dict[UUID, list[_Wait]] = {}
            for wait in waits:
                del self._due[wait]
                if wait.idle:
                    wait.due = False
                    by_tenant.setdefault(wait.item.tenant_id, []).append(wait)
            if not self._due:
                self._some_due.clear()
            await asyncio.gather(*(self._look(*each) for each in by_tenant.items()))

    async def _look_after_all(self) -> None:
        while True:
            await self._somebody.wait()
            waits = self._all()
            if not waits:
                self._somebody.clear()
            # Some of them at a time, so that due waits do not queue after thousands.
            for first in range(0, len(waits), LOOK_WAITS):
                await asyncio.sleep(MISSED_SECONDS * LOOK_WAITS / max(len(waits), LOOK_WAITS))
                self._look_soon(waits[first : first + LOOK_WAITS])

    async def _want_again(self) -> None:
        while True:
            await asyncio.sleep(WANT_SECONDS)
            by_tenant: dict[UUID, list[WorkItem]] = {}
            for item in dict.fromkeys(wait.item for wait in self._all() if wait.is_wanted):
                by_tenant.setdefault(item.tenant_id, []).append(item)
            # Tenants take turns, since only so many items are passed on at once.
            turns = zip_longest(*by_tenant.values())
            if items := [item for turn in turns for item in turn if item is not None]:
                self._want(items)

    async def _look(self, tenant_id: UUID, waits: Sequence[_Wait]) -> None:
        try:
            async with self._tenants:
                seen = await self._see(tenant_id, waits)
        except StorageError as error:
            # The waits go on until their deadlines.
            _log.warning("waiting reads not checked", cause=str(error))
        except Exception:
            # The loop must outlive a defect: else no wait of this process would be checked any
            # more.
            _log.exception("waiting reads not checked")
        else:
            for wait in waits:
                wait.show(seen)

    async def _see(self, tenant_id: UUID, waits: Sequence[_Wait]) -> _Seen:
        seen = _Seen()
        items = {one.item.item_id: one.item for one in waits}
        memories = [item for item in items.values() if item.kind is WorkKind.MEMORY]
        indexes = [item.item_id for item in items.values() if item.kind is WorkKind.INDEX]
        if memories or indexes:
            keys = [(item.session_key, item.item_id) for item in memories]
            async with self._database.direct(tenant_id, name="progress") as direct:
                if memories:
                    seen.progress.update(await read_progress(direct, keys))
                if indexes:
                    seen.progress.update(await read_index_progress(direct, indexes))
            there = {item.item_id for item in memories}.union(indexes)
            seen.gone.update(there - seen.progress.keys())
        made = [item for item in items.values() if item.kind in job_results.JOB_TABLES]
        if made:
            async with self._database.transaction(tenant_id, name="progress") as tx:
                seen.settled.update(one.item_id for one in await job_results.ended(tx, made))
                seen.gone.update(one.item_id for one in await job_results.missing(tx, made))
                listening = [one.listener for one in waits if one.listener is not None]
                if listening:
                    # After that query, so that no event is missed of what has ended.
                    seen.told.update(await texts.read_news(tx, listening))
        return seen
