"""Reads the past of memories: their logs, where a value came from, what changed."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from itertools import islice
from uuid import UUID

from service.domain.answers.citations import best_position
from service.domain.log.chunks import LoggedChunk
from service.domain.memories.specs import kinds
from service.domain.prism.amending import Missing, ValueDifference, differences, settle, value_at
from service.domain.prism.memory import PrismMemory
from service.domain.prism.provenance import OriginSearch, Touch, ValueTracer, Write, search_path
from service.domain.prism.schemas.tree import Mismatch, Schema
from service.domain.prism.spec import PrismSpec
from service.domain.values.errors import InvalidInput
from service.domain.values.json_values import Json, canonical, parse
from service.domain.values.paths import Path, PathError
from service.domain.values.reasons import Reason
from service.usecases.log.lookup import find_memory, item_key, revision_not_found
from service.usecases.memories.kinds import KindUseCases
from storage.access import source_trust
from storage.access.source_trust import ReadRange
from storage.engine.database import Database, Transaction
from storage.engine.listing import ListPage
from storage.log import pages
from storage.memories import history
from storage.memories.history import StoredRevision
from storage.memories.memories import StoredMemory
from storage.prism import amendment_log, states
from storage.prism.amendment_log import AmendmentFilter, LoggedAmendment, LoggedRejection

#: Amendments of a path among which the origin of its value is looked for.
ORIGIN_AMENDMENTS = 1000
#: Chunks of an entry that are shown, in bytes with their metadata.
ENTRY_CHUNK_BYTES = 256 * 1024
#: Chunks of a page of entries, in bytes; the value of the path is not counted.
PROVENANCE_BYTES = 1024 * 1024
#: Entries whose chunks are read at once.
READ_ENTRIES = 4

#: An amendment, and what it did to a path.
TouchingAmendment = tuple[LoggedAmendment, Touch]


@dataclass(frozen=True, kw_only=True, slots=True)
class Explained:
    """An amendment that touched a path, and what it was made from."""

    amendment: LoggedAmendment
    revision: StoredRevision
    #: Nothing has replaced it as a whole.
    in_effect: bool
    #: It first wrote the value that the path has now.
    origin: bool
    #: The position of the chunk that says it most clearly; 0 when none was read.
    best_position: int
    #: What was read for it, cut at ENTRY_CHUNK_BYTES.
    chunks: tuple[LoggedChunk, ...]
    chunks_truncated: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Provenance:
    """What a path has, and a page of what made it."""

    memory: StoredMemory
    path: Path
    revision: int
    #: All chunks up to here are in that revision.
    applied_position: int
    #: Canonical JSON; None when there is nothing.
    value: str | None
    #: Newest first; one more than was asked for when there are more.
    entries: tuple[Explained, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class ComparedState:
    """A memory's state at a revision, as it is compared."""

    memory: StoredMemory
    revision: int
    #: All chunks up to here are in it.
    applied_position: int
    value: Json


@dataclass(frozen=True, kw_only=True, slots=True)
class RevisionComparison:
    """Where two states differ: a page of it."""

    old: ComparedState
    new: ComparedState
    #: One more than was asked for when there are more.
    differences: tuple[ValueDifference, ...]


class History:
    """Answers what clients ask about the past of memories."""

    def __init__(self, database: Database, kinds: Mapping[str, KindUseCases]) -> None:
        self._database = database
        self._kinds = kinds

    async def amendments(
        self,
        tenant_id: UUID,
        session: str,
        name: str,
        after: tuple[int, int],
        limit: int,
        wanted: AmendmentFilter,
        *,
        max_bytes: int,
    ) -> tuple[StoredMemory, ListPage[LoggedAmendment]]:
        """Returns up to `limit` amendments after (revision, ordinal), about `max_bytes` of them.

        Raises NotFound.
        """
        async with self._database.snapshot(tenant_id, name="history") as tx:
            stored = await find_memory(tx, session, name, PrismSpec.kind)
            found = await amendment_log.page_amendments(
                tx, *item_key(stored), after, limit, wanted, max_bytes=max_bytes
            )
            return stored, replace(found, items=await _with_trust(tx, stored, found.items))

    async def rejections(
        self,
        tenant_id: UUID,
        session: str,
        name: str,
        after: tuple[int, int],
        limit: int,
        *,
        max_bytes: int,
    ) -> tuple[StoredMemory, ListPage[LoggedRejection]]:
        """Returns up to `limit` rejections after (revision, ordinal), about `max_bytes` of them.

        Raises NotFound.
        """
        async with self._database.snapshot(tenant_id, name="history") as tx:
            stored = await find_memory(tx, session, name, PrismSpec.kind)
            return stored, await amendment_log.page_rejections(
                tx, *item_key(stored), after, limit, max_bytes=max_bytes
            )

    async def revisions(
        self,
        tenant_id: UUID,
        session: str,
        name: str,
        after: int,
        limit: int,
        *,
        max_bytes: int,
    ) -> tuple[StoredMemory, ListPage[StoredRevision]]:
        """Returns up to `limit` revisions after `after`, about `max_bytes` of them.

        -1 begins at the first. Raises NotFound.
        """
        async with self._database.snapshot(tenant_id, name="history") as tx:
            stored = await find_memory(tx, session, name)
            return stored, await history.page_revisions(
                tx, *item_key(stored), after, limit, max_bytes=max_bytes
            )

    async def prefix(self, tenant_id: UUID, session: str, name: str, text: str) -> Path:
        """Returns a path as it is stored. Raises NotFound, InvalidInput."""
        async with self._database.transaction(tenant_id, name="history") as tx:
            stored = await find_memory(tx, session, name, PrismSpec.kind)
        return _place(PrismSpec.of(stored).schema(), None, text, "path_prefix")

    async def provenance(
        self,
        tenant_id: UUID,
        session: str,
        name: str,
        path: str,
        *,
        revision: int | None,
        before: tuple[int, int] | None,
        limit: int,
        max_bytes: int = PROVENANCE_BYTES,
    ) -> Provenance:
        """Returns what made the value at `path`, after the entry `before` (revision, ordinal).

        Of entries whose chunks have more than `max_bytes` together only the first come, and
        at least one more than fits. Raises NotFound, OutOfRange, InvalidInput.
        """
        async with self._database.snapshot(tenant_id, name="history") as tx:
            stored = await find_memory(tx, session, name, PrismSpec.kind)
            at = stored.revision if revision is None else revision
            memory, applied_position = await _load_state(tx, stored, at)
            place = _place(PrismSpec.of(stored).schema(), memory.value, path, "path")
            held = value_at(memory.value, place)
            page, first = await _trace(tx, stored, place, held, at, before, limit + 1)
            entries = await _explain(tx, stored, page, first, max_bytes)
        return Provenance(
            memory=stored,
            path=place,
            revision=at,
            applied_position=applied_position,
            value=None if isinstance(held, Missing) else canonical(held),
            entries=entries,
        )

    async def compare(
        self,
        tenant_id: UUID,
        session: str,
        sides: tuple[tuple[str, int | None], tuple[str, int | None]],
        *,
        skip: int,
        limit: int,
    ) -> RevisionComparison:
        """Returns where (name, revision) and (name, revision) differ: both of PRISM memories,
        or of state memories. Raises NotFound, FailedPrecondition, OutOfRange."""
        compared: list[ComparedState] = []
        wanted = kinds(lambda spec: spec.has_states)
        async with self._database.snapshot(tenant_id, name="history") as tx:
            for name, revision in sides:
                stored = await find_memory(tx, session, name, *wanted)
                wanted = (stored.kind,)
                at = stored.revision if revision is None else revision
                if at > stored.revision:
                    raise revision_not_found(name, at, stored.revision)
                value, applied = await self._kinds[stored.kind].state(tx, stored, at)
                compared.append(
                    ComparedState(memory=stored, revision=at, applied_position=applied, value=value)
                )
        old, new = compared
        found = differences(old.value, new.value)
        return RevisionComparison(
            old=old, new=new, differences=tuple(islice(found, skip, skip + limit + 1))
        )


async def _load_state(
    tx: Transaction, stored: StoredMemory, revision: int
) -> tuple[PrismMemory, int]:
    """Returns a memory at a revision, and how far it was applied then. Raises OutOfRange."""
    if revision > stored.revision:
        raise revision_not_found(stored.name, revision, stored.revision)
    rows = await states.get_nearest(tx, *item_key(stored), revision)
    return rows.memory(PrismSpec.of(stored).schema()), rows.applied_position


def _place(schema: Schema, value: Json, text: str, field: str) -> Path:
    try:
        return settle(schema, value, Path.parse(text))[0]
    except (PathError, Mismatch) as error:
        raise InvalidInput(
            Reason.PATH_INVALID, f"{text!r}: {error}", {"path": text}, field=field
        ) from error


async def traced(
    tx: Transaction, key: tuple[UUID, UUID], path: Path, *, exists: bool, at_revision: int
) -> AsyncGenerator[TouchingAmendment]:
    """Yields the amendments that touched `path` up to a revision, newest first."""
    line = await history.lineage(tx, *key, at_revision)
    tracer = ValueTracer(path, exists=exists)
    logged = amendment_log.touching(tx, *key, search_path(path), line)
    async with aclosing(logged):
        async for one in logged:
            write = Write(
                revision=one.revision,
                ordinal=one.ordinal,
                path=Path.parse(one.path),
                op=one.op,
                value=parse(one.value),
            )
            touch = tracer.touch(write)
            if touch is not None:
                yield one, touch


async def _trace(
    tx: Transaction,
    stored: StoredMemory,
    path: Path,
    held: Json | Missing,
    at_revision: int,
    before: tuple[int, int] | None,
    limit: int,
) -> tuple[Sequence[TouchingAmendment], Write | None]:
    """Returns up to `limit` of what touched the path after `before`, and its value's first write.

    Keeps no more than that in memory, however often the path was written.
    """
    exists = not isinstance(held, Missing)
    search = OriginSearch(None if isinstance(held, Missing) else held)
    page: list[TouchingAmendment] = []
    looked = 0
    touches = traced(tx, item_key(stored), path, exists=exists, at_revision=at_revision)
    async with aclosing(touches):
        async for one, touch in touches:
            if exists and looked < ORIGIN_AMENDMENTS:
                search.look(touch)
                looked += 1
            if before is None or (one.revision, one.ordinal) < before:
                page.append((one, touch))
            is_known = not exists or search.is_over or looked >= ORIGIN_AMENDMENTS
            if len(page) >= limit and is_known:
                break
            del page[limit:]
    return page, search.found


async def _explain(
    tx: Transaction,
    stored: StoredMemory,
    page: Sequence[TouchingAmendment],
    first: Write | None,
    max_bytes: int,
) -> tuple[Explained, ...]:
    """Returns the entries of a page; where their chunks have more than `max_bytes` not all, but
    more than fit."""
    amendments = await _with_trust(tx, stored, [logged for logged, _ in page])
    page = [(one, touch) for one, (_, touch) in zip(amendments, page, strict=True)]
    numbers = sorted({logged.revision for logged, _ in page})
    revisions = await history.read_revisions(tx, *item_key(stored), numbers)
    explained: list[Explained] = []
    shown_bytes = 0
    for start in range(0, len(page), READ_ENTRIES):
        part = page[start : start + READ_ENTRIES]
        ranges = {(logged.from_position, logged.to_position) for logged, _ in part}
        read = await pages.read_pages(tx, stored.session_key, sorted(ranges), ENTRY_CHUNK_BYTES)
        for logged, touch in part:
            chunks = read.get(logged.from_position, ())
            shown_bytes += sum(chunk.chunk.size_bytes() for chunk in chunks)
            explained.append(_explained(logged, touch, revisions[logged.revision], chunks, first))
        if shown_bytes > max_bytes:
            break
    return tuple(explained)


async def _with_trust(
    tx: Transaction, stored: StoredMemory, amendments: Sequence[LoggedAmendment]
) -> Sequence[LoggedAmendment]:
    """Adds how much the least trusted of the chunks is trusted that were read for each."""
    ranges = [
        ReadRange(
            memory_id=stored.memory_id,
            revision=one.revision,
            after=one.from_position,
            upto=one.to_position,
        )
        for one in amendments
    ]
    levels = await source_trust.least_of_ranges(tx, stored.session_key, ranges)
    return [replace(one, trust=levels[read]) for one, read in zip(amendments, ranges, strict=True)]


def _explained(
    logged: LoggedAmendment,
    touch: Touch,
    revision: StoredRevision,
    chunks: Sequence[LoggedChunk],
    first: Write | None,
) -> Explained:
    texts = [(chunk.position, chunk.chunk.as_text()) for chunk in chunks]
    return Explained(
        amendment=logged,
        revision=revision,
        in_effect=touch.in_effect,
        origin=first is not None
        and (first.revision, first.ordinal) == (logged.revision, logged.ordinal),
        best_position=best_position(logged.value, texts) if texts else 0,
        chunks=tuple(chunks),
        chunks_truncated=len(chunks) < logged.to_position - logged.from_position,
    )
