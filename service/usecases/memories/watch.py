"""Watches memories: yields each revision once, in order, as it is committed."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from itertools import groupby
from uuid import UUID

from opentelemetry.trace import SpanContext

from service.domain.values.errors import DeadlineExceeded
from service.domain.values.reasons import Reason
from service.settings.config import Limits
from service.telemetry import tracing
from service.usecases.log.concurrency_limiter import ConcurrencyLimiter
from service.usecases.log.lookup import find_memory, item_key, memory_not_found, revision_not_found
from service.usecases.memories.progress_watcher import ProgressWatcher
from storage.engine import trace_contexts
from storage.engine.database import Database
from storage.memories import history
from storage.memories.history import StoredRevision
from storage.memories.memories import StoredMemory
from storage.prism import amendment_log, states
from storage.prism.amendment_log import LoggedAmendment

#: Revisions that one query reads.
READ_REVISIONS = 100
#: Amendments that one query reads, and bytes of them, unless a single revision has more.
READ_AMENDMENTS = 500
READ_BYTES = 2 * 1024 * 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class Started:
    """The watch has begun: all revisions after this one follow."""

    after_revision: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Committed:
    """A revision with its amendments."""

    revision: StoredRevision
    amendments: tuple[LoggedAmendment, ...]
    #: The span that committed it, if the watch and that are sampled.
    trace: SpanContext | None = None


class Watches:
    """The watches of one server process."""

    def __init__(self, database: Database, watcher: ProgressWatcher, limits: Limits) -> None:
        self._database = database
        self._watcher = watcher
        self._slots = ConcurrencyLimiter(
            limits.max_watches, reason=Reason.TOO_MANY_WATCHES, what="watches"
        )

    async def watch(
        self,
        tenant_id: UUID,
        session: str,
        name: str,
        after_revision: int | None,
        *,
        deadline: float | None,
    ) -> AsyncGenerator[Started | Committed]:
        """Yields every revision after `after_revision`; None begins after the newest.

        `deadline` is in the event loop's time. Raises NotFound, OutOfRange, Exhausted,
        and DeadlineExceeded at the end.
        """
        with self._slots.slot():
            async with self._database.transaction(tenant_id, name="watch") as tx:
                stored = await find_memory(tx, session, name)
            told = stored.revision if after_revision is None else after_revision
            if told > stored.revision:
                raise revision_not_found(name, told, stored.revision)
            yield Started(after_revision=told)
            async with aclosing(self._follow(tenant_id, stored, told, deadline)) as commits:
                async for committed in commits:
                    yield committed

    async def _follow(
        self, tenant_id: UUID, stored: StoredMemory, told: int, deadline: float | None
    ) -> AsyncGenerator[Committed]:
        newest = stored.revision
        key = item_key(stored)
        looks = self._watcher.progress(
            tenant_id,
            key,
            deleted=memory_not_found(stored.session_name, stored.name),
            deadline=deadline,
        )
        async with aclosing(looks) as seen:
            while True:
                while told < newest:
                    found = await self._read(tenant_id, stored, told)
                    for committed in found:
                        yield committed
                        told = committed.revision.revision
                    if not found:
                        # A standby took over that does not have them.
                        newest = told
                progress = await anext(seen, None)
                if progress is None:
                    break
                newest = progress.revision
        raise DeadlineExceeded(
            Reason.NOT_APPLIED_IN_TIME,
            f"memory {stored.name!r} was watched up to revision {told}",
            {"revision": told},
        )

    async def _read(self, tenant_id: UUID, stored: StoredMemory, after: int) -> Sequence[Committed]:
        key = item_key(stored)
        async with self._database.transaction(tenant_id, name="watch") as tx:
            revisions = await history.list_revisions(tx, *key, after, READ_REVISIONS)
            if any(one.expired for one in revisions):
                # Amendments between them are gone: the client has to read the state.
                raise await states.history_ended(tx, *key, after)
            sizes: Mapping[int, int] = {}
            if len(revisions) > 1:
                numbers = (revisions[0].revision, revisions[-1].revision)
                sizes = await amendment_log.list_sizes(tx, *key, numbers)
            revisions = _of_one_look(revisions, sizes)
            total = sum(one.amendments for one in revisions)
            found = await amendment_log.list_amendments(
                tx, *key, after=(after, 2**31 - 1), limit=max(total, 1)
            )
            traces: Mapping[int, SpanContext] = {}
            if tracing.sampled() is not None:
                # Each ends at its revision.
                last = max([after, *(one.revision for one in revisions)])
                traces = dict(await trace_contexts.read(tx, *key, after=after, upto=last))
        batches = {number: tuple(batch) for number, batch in groupby(found, key=_revision_of)}
        return [
            Committed(
                revision=one,
                amendments=batches.get(one.revision, ()),
                trace=traces.get(one.revision),
            )
            for one in revisions
        ]


def _of_one_look(
    revisions: Sequence[StoredRevision], sizes: Mapping[int, int]
) -> Sequence[StoredRevision]:
    """Returns the revisions that one query reads together, but never a part of one."""
    amendments = content_bytes = 0
    for number, one in enumerate(revisions):
        amendments += one.amendments
        content_bytes += sizes.get(one.revision, 0)
        if number and (amendments > READ_AMENDMENTS or content_bytes > READ_BYTES):
            return revisions[:number]
    return revisions


def _revision_of(logged: LoggedAmendment) -> int:
    return logged.revision
