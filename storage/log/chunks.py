"""The log: locks sessions, writes and reads chunks.

Appending is the hottest path of the service, so it takes few round trips: one to lock, one to
write, one to commit, whatever the number of sessions and chunks.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from psycopg.types.json import Jsonb
from sqlalchemy import ColumnElement, bindparam, literal_column, null, select
from sqlalchemy.dialects.postgresql import insert

from service.domain.access.trust import Trust
from service.domain.log.appending import DoneRequest, PlacedChunk, ProducerState, SessionState
from service.domain.log.chunks import Chunk, ChunkKind, LoggedChunk
from service.domain.values.work_items import WorkItem, WorkKind
from storage.access import source_trust
from storage.engine import trace_contexts
from storage.engine.database import Transaction
from storage.engine.ready import Ready
from storage.engine.trace_contexts import Traced
from storage.log import requests as done_requests
from storage.log.requests import RequestKey
from storage.tables import chunk, producer

ProducerKey = tuple[UUID, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Locked:
    """Sessions under their row locks, with those producers and requests that exist."""

    sessions: Mapping[UUID, SessionState]
    producers: Mapping[ProducerKey, ProducerState]
    #: Those that were executed before.
    requests: Mapping[RequestKey, DoneRequest]
    #: Sessions without a chunk whose first append makes a memory, unless they have one.
    unbegun: Collection[UUID] = ()
    #: Sessions that keep texts out.
    keeping_out: Collection[UUID] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class NewChunk:
    """A chunk to be written."""

    producer: ProducerKey
    placed: PlacedChunk
    #: Set for a tombstone: the redaction that it belongs to.
    redaction_id: UUID | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredDigest:
    """What a repeat of a stored chunk is compared with."""

    position: int
    #: SHA-256 of the content; of a redacted chunk the keyed digest of that.
    digest: bytes
    is_redacted: bool = False


# In the order of the keys, so that two group commits cannot wait for each other. The lag of a tree
# that is being closed is what it has still to read, however long the log gets; an idle state
# memory has no lag by the steps that wait for more.
#
# OFFSET 0 here and below, and ANY in place of joins: each row is looked up by its key, whatever
# the statistics are. With those of a time without any lag, the planner would go through all
# runnable memories for each session, or through a whole table for a join.
_LOCK_SESSIONS = """
SELECT session_key, head, incarnation,
    coalesce((SELECT min(applied_position + coalesce(head - seal_position, 0)) FROM (
        SELECT applied_position, seal_position, status, has_work, resting FROM memory
        WHERE memory.session_key = session.session_key OFFSET 0
    ) AS own WHERE status = 'active' AND has_work AND NOT resting), head),
    head = 0 AND default_memory <> 'none', keeps_out
FROM session WHERE session_key = ANY(%s) ORDER BY session_key FOR NO KEY UPDATE OF session
"""

_READ_PRODUCERS = """
SELECT p.* FROM unnest(%s::uuid[], %s::text[]) AS w (session_key, producer_id)
CROSS JOIN LATERAL (
    SELECT session_key, producer_id, epoch, last_sequence FROM producer
    WHERE producer.session_key = w.session_key AND producer.producer_id = w.producer_id
    OFFSET 0
) AS p
"""

# A memory that gets work is ready now, unless it has to wait longer (`ready_at`).
_WRITE = """
WITH producers AS (
    INSERT INTO producer (session_key, producer_id, tenant_id, epoch, last_sequence)
    SELECT k, p, %b::uuid, e, l
    FROM unnest(%b::uuid[], %b::text[], %b::int8[], %b::int8[]) AS t (k, p, e, l)
    ON CONFLICT (session_key, producer_id)
    DO UPDATE SET epoch = EXCLUDED.epoch, last_sequence = EXCLUDED.last_sequence
), chunks AS (
    INSERT INTO chunk (tenant_id, session_key, position, producer_id, producer_sequence,
                       kind, role, text, observation, thought, action, metadata, digest,
                       observed_first, thread, source, occurred_at, redaction_id)
    SELECT %b::uuid, t.*
    FROM unnest(%b::uuid[], %b::int8[], %b::text[], %b::int8[], %b::text[], %b::text[],
                %b::text[], %b::text[], %b::text[], %b::text[], %b::jsonb[], %b::bytea[],
                %b::bool[], %b::text[], %b::text[], %b::timestamptz[], %b::uuid[]) AS t
), sessions AS (
    UPDATE session SET head = (%b::int8[])[array_position(%b::uuid[], session_key)],
        content_bytes = content_bytes + (%b::int8[])[array_position(%b::uuid[], session_key)],
        has_unindexed = true
    WHERE session_key = ANY(%b::uuid[])
)
UPDATE memory SET has_work = true, resting = false,
    ready_at = CASE WHEN resting THEN clock.at ELSE greatest(ready_at, clock.at) END
FROM (SELECT now() AS at) AS clock
WHERE session_key = ANY(%b::uuid[]) AND (NOT has_work OR resting) AND status <> 'sealed'
    AND (wake_position IS NULL
        OR wake_position <= (%b::int8[])[array_position(%b::uuid[], session_key)])
RETURNING session_key, memory_id, status
"""
#: The same with the requests of the chunks.
_WRITE_REQUESTS = f"WITH requests AS ({done_requests.INSERT}), {_WRITE.lstrip()[len('WITH ') :]}"


def _and_contexts(statement: str) -> str:
    """Adds trace contexts to a statement that begins with WITH; their values come first."""
    contexts = trace_contexts.insert("%b")
    return f"WITH traced AS ({contexts}), {statement.lstrip()[len('WITH ') :]}"


# The same for the most frequent case, new chunks of one producer, in one round trip. The function
# is in migrations/schema/01_log.sql; the connection keeps its plans.
_APPEND_IF_UNCHANGED = """
SELECT woken, applied FROM write_if_unchanged(
    %s, %s, %s::integer, %s, %s, %s, {arrays}, %s, {observed_first}, {headings})
"""
# The same for chunks of requests.
_APPEND_REQUESTS_IF_UNCHANGED = """
SELECT woken, applied FROM write_requests_if_unchanged(
    %s, %s, %s::integer, %s, %s, %s, {arrays}, %s,
    %s::text[], %s::bytea[], %s::bigint[], %s::bigint[], {observed_first}, {headings})
"""
_CONTENT_TYPES = ("text", "text", "text", "text", "text", "text", "jsonb", "bytea")
#: Threads, sources and times, where no chunk has any.
_NO_HEADINGS = "NULL::text[], NULL::text[], NULL::timestamptz[]"

_READ_REPEATED = """
SELECT c.* FROM unnest(%s::uuid[], %s::text[], %s::int8[]) AS w (session_key, producer_id, sequence)
CROSS JOIN LATERAL (
    SELECT session_key, producer_id, producer_sequence, position, digest,
        redaction_id IS NOT NULL FROM chunk
    WHERE chunk.session_key = w.session_key AND chunk.producer_id = w.producer_id
        AND chunk.producer_sequence = w.sequence
    OFFSET 0
) AS c
"""


async def lock(
    tx: Transaction,
    producers: Sequence[ProducerKey],
    requests: Sequence[RequestKey] = (),
    *,
    waits: bool = True,
) -> Locked:
    """Begins a transaction and locks the producers' sessions, in one round trip.

    Leaves out sessions, producers and requests that do not exist, and unless it `waits`, sessions
    that another transaction has locked.
    """
    queries = [_LOCK_SESSIONS if waits else f"{_LOCK_SESSIONS} SKIP LOCKED", _READ_PRODUCERS]
    values: list[object] = [sorted({key for key, _ in producers})]
    values += [[key for key, _ in producers], [name for _, name in producers]]
    if requests:
        queries.append(done_requests.READ)
        values += done_requests.keys(requests)
    sessions, known, *done = await tx.pipeline(queries, values, stays_open=True)
    locked = {
        key: SessionState(
            head=head, incarnation=incarnation, applied_position=applied, keeps_out=keeps_out
        )
        for key, head, incarnation, applied, _, keeps_out in sessions
    }
    return Locked(
        sessions=locked,
        producers={
            (key, name): ProducerState(epoch=epoch, last_sequence=last)
            for key, name, epoch, last in known
            if key in locked
        },
        requests=done_requests.done(done[0]) if done else {},
        unbegun=[row[0] for row in sessions if row[-2]],
        keeping_out=[row[0] for row in sessions if row[-1]],
    )


async def read_repeated(
    tx: Transaction, wanted: Sequence[tuple[UUID, str, int]]
) -> Mapping[tuple[UUID, str, int], StoredDigest]:
    """Returns position and digest of stored chunks, by session, producer and sequence."""
    keys, names, sequences = [list(column) for column in zip(*wanted, strict=True)]
    rows = await tx.fetch(_READ_REPEATED, (keys, names, sequences))
    return {
        (key, name, sequence): StoredDigest(position=position, digest=digest, is_redacted=redacted)
        for key, name, sequence, position, digest, redacted in rows
    }


async def write(
    tx: Transaction,
    chunks: Sequence[NewChunk],
    heads: Mapping[UUID, int],
    producers: Mapping[ProducerKey, ProducerState],
    requests: Mapping[RequestKey, DoneRequest],
    traced: Sequence[Traced] = (),
) -> Sequence[WorkItem]:
    """Writes chunks, heads, producers, requests and trace contexts, in one round trip.

    Returns the active memories that had no work before and have some now.
    """
    done = (tx.tenant_id, *done_requests.columns(requests)) if requests else ()
    added_bytes = dict.fromkeys(heads, 0)
    for new in chunks:
        added_bytes[new.producer[0]] += new.placed.submitted.size_bytes
    keys, positions, sizes = list(heads), list(heads.values()), list(added_bytes.values())
    statement = _WRITE_REQUESTS if requests else _WRITE
    contexts: tuple[object, ...] = ()
    if traced:
        statement = _and_contexts(statement)
        contexts = (tx.tenant_id, *trace_contexts.columns(traced))
    rows = await tx.fetch(
        statement,
        (
            *contexts,
            *done,
            tx.tenant_id,
            [key for key, _ in producers],
            [name for _, name in producers],
            [state.epoch for state in producers.values()],
            [state.last_sequence for state in producers.values()],
            tx.tenant_id,
            *_columns(chunks),
            *(positions, keys, sizes, keys, keys),
            *(keys, positions, keys),
        ),
    )
    return [
        _memory_item(tx, key, memory_id) for key, memory_id, status in rows if status == "active"
    ]


@dataclass(frozen=True, kw_only=True, slots=True)
class FastPathAppended:
    """The result of a write in one round trip."""

    woken: Sequence[WorkItem]
    #: The least applied_position of the session's active memories; None without one.
    applied_position: int | None


async def append_fast_path(
    tx: Transaction,
    chunks: Sequence[NewChunk],
    session: SessionState,
    known: ProducerState,
    requests: Mapping[RequestKey, DoneRequest],
    traced: Sequence[Traced] = (),
) -> FastPathAppended | None:
    """Writes new chunks of one producer, durably, in one round trip.

    `session` and `known` are their last known states. Returns None, and writes nothing, when they
    have changed since, when chunks do not follow `known`, or when one of `requests` was executed
    before.
    """
    key, producer_id = chunks[0].producer
    # The function numbers chunks by itself, and would store other sequences than were sent.
    due = known.last_sequence + 1
    if [new.placed.submitted.sequence for new in chunks] != [*range(due, due + len(chunks))]:
        return None
    guards: tuple[object, ...] = (key, session.head, session.incarnation, producer_id)
    guards += (known.epoch, known.last_sequence)
    *contents, observed_first, threads, sources, times, _ = _columns(chunks)[_FIRST_CONTENT:]
    added = sum(new.placed.submitted.size_bytes for new in chunks)
    # Element by element: the driver is slow with lists.
    places = ", ".join(["%s"] * len(chunks))
    arrays = ", ".join(f"ARRAY[{places}]::{of}[]" for of in _CONTENT_TYPES)
    values = (value for column in contents for value in column)
    form = _APPEND_REQUESTS_IF_UNCHANGED if requests else _APPEND_IF_UNCHANGED
    done = done_requests.columns(requests) if requests else []
    # The function knows the session, and the method.
    requested = [done[1], *done[3:]] if requests else []
    headings: list[object] = []
    headings_sql = _NO_HEADINGS
    if any(new.placed.submitted.chunk.has_heading() for new in chunks):
        headings = [*threads, *sources, *times]
        headings_sql = ", ".join(
            f"ARRAY[{places}]::{of}[]" for of in ("text", "text", "timestamptz")
        )
    statement = form.format(
        arrays=arrays, observed_first=f"ARRAY[{places}]::boolean[]", headings=headings_sql
    )
    contexts: list[object] = []
    if traced:
        added_contexts = trace_contexts.insert("%s", source="written")
        statement = f"""
            WITH written AS ({statement}), traced AS ({added_contexts}) SELECT * FROM written"""  # noqa: S608 - all of it is ours
        contexts = [tx.tenant_id, *trace_contexts.columns(traced)]
    parameters = (*guards, *values, added, *requested, *observed_first, *headings, *contexts)
    rows = await tx.fetch(statement, parameters)
    if not rows:
        return None
    woken, applied = rows[0]
    return FastPathAppended(
        woken=[_memory_item(tx, key, memory_id) for memory_id in woken or ()],
        applied_position=applied,
    )


def _memory_item(tx: Transaction, key: UUID, memory_id: UUID) -> WorkItem:
    return WorkItem(
        kind=WorkKind.MEMORY, tenant_id=tx.tenant_id, session_key=key, item_id=memory_id
    )


#: The columns before it are keys, which `write_if_unchanged` computes by itself.
_FIRST_CONTENT = 4


def _columns(chunks: Sequence[NewChunk]) -> list[list[object]]:
    submitted = [new.placed.submitted for new in chunks]
    contents = [one.chunk for one in submitted]
    return [
        [new.producer[0] for new in chunks],
        [new.placed.position for new in chunks],
        [new.producer[1] for new in chunks],
        [one.sequence for one in submitted],
        [content.kind.value for content in contents],
        [content.role for content in contents],
        [content.text for content in contents],
        [content.observation for content in contents],
        [content.thought for content in contents],
        [content.action for content in contents],
        [Jsonb(dict(content.metadata)) if content.metadata else None for content in contents],
        [one.digest for one in submitted],
        [content.observed_first for content in contents],
        [content.thread or None for content in contents],
        [content.source or None for content in contents],
        [content.occurred_at for content in contents],
        [new.redaction_id for new in chunks],
    ]


_NEW_PRODUCER = insert(producer).values(
    session_key=bindparam("session"),
    producer_id=bindparam("name"),
    tenant_id=bindparam("tenant"),
    epoch=bindparam("raised"),
    last_sequence=0,
)
#: Built once: building it takes longer than its round trip.
_RAISE_EPOCH = _NEW_PRODUCER.on_conflict_do_update(
    index_elements=["session_key", "producer_id"],
    set_={"epoch": _NEW_PRODUCER.excluded.epoch},
    where=producer.c.epoch < _NEW_PRODUCER.excluded.epoch,
)
_PRODUCER = select(producer.c.epoch, producer.c.last_sequence).where(
    producer.c.session_key == bindparam("session"), producer.c.producer_id == bindparam("name")
)


async def open_producer(
    tx: Transaction, session_key: UUID, producer_id: str, epoch: int
) -> ProducerState:
    """Creates the producer, or raises its epoch to `epoch`; returns its state after it."""
    key = {"session": session_key, "name": producer_id}
    await tx.execute(_RAISE_EPOCH, {**key, "tenant": tx.tenant_id, "raised": epoch})
    row = (await tx.fetch(_PRODUCER, key))[0]
    return ProducerState(epoch=row.epoch, last_sequence=row.last_sequence)


async def read(
    tx: Transaction, session_key: UUID, after_position: int, limit: int
) -> Sequence[LoggedChunk]:
    """Returns up to `limit` chunks after `after_position`, in order."""
    values = {"session": session_key, "after": after_position, "count": limit}
    return [logged_of(row) for row in await tx.fetch(_AFTER, values)]


#: The size of a chunk's content, thread and source in bytes of UTF-8, where its table is called c.
#: It does not read values that are stored out of line.
CONTENT_BYTES = """(octet_length(c.role) + octet_length(c.text) + octet_length(c.observation)
    + octet_length(c.thought) + octet_length(c.action)
    + coalesce(octet_length(c.thread), 0) + coalesce(octet_length(c.source), 0))"""

# A range has as many chunks as positions. Without the limit the planner expects a ninth of a long
# session for each range.
_IN_RANGES = f"""
SELECT sized.position, r.after
FROM unnest(%(after)s::bigint[], %(upto)s::bigint[]) AS r (after, upto), LATERAL (
    SELECT c.position,
        sum({CONTENT_BYTES}) OVER (ORDER BY c.position ROWS UNBOUNDED PRECEDING) AS total
    FROM chunk c
    WHERE c.session_key = %(session)s AND c.position > r.after AND c.position <= r.upto
    ORDER BY c.position LIMIT r.upto - r.after
) AS sized
WHERE total <= %(bytes)s OR sized.position = r.after + 1
"""  # noqa: S608 - all of it is ours


async def read_ranges(
    tx: Transaction,
    session_key: UUID,
    ranges: Sequence[tuple[int, int]],
    max_bytes: int,
    *,
    as_stored: bool = False,
) -> Mapping[int, Sequence[LoggedChunk]]:
    """Returns the chunks at positions (after, to] of each range, by its `after`.

    Of each range the first that have `max_bytes` of content together, and at least one. No two
    ranges begin at the same position. Leaves out metadata, which the bytes do not count and no
    model reads: of a thousand tiny chunks it may be 70 MB. Chunks of blocked sources are empty,
    unless they are read `as_stored`.
    """
    used = [(after, upto) for after, upto in ranges if after < upto]
    values = {
        "session": session_key,
        "after": [after for after, _ in used],
        "upto": [upto for _, upto in used],
        "bytes": max_bytes,
    }
    places = {row.position: row.after for row in await tx.fetch(_IN_RANGES, values, prepare=None)}
    statement = (
        select(*_CHUNK[:-2], null(), _CHUNK[-1])
        .where(chunk.c.session_key == session_key, chunk.c.position.in_(places))
        .order_by(chunk.c.position)
    )
    of = stored_of if as_stored else logged_of
    found: dict[int, list[LoggedChunk]] = {}
    for row in await tx.fetch(statement):
        found.setdefault(places[row.position], []).append(of(row))
    return found


async def read_texts(
    tx: Transaction, session_key: UUID, ranges: Sequence[tuple[int, int]]
) -> Mapping[int, str]:
    """Returns the text of every chunk in `ranges` (a, b], by position."""
    positions = sorted({p for a, b in ranges for p in range(a + 1, b + 1)})
    statement = select(*_CHUNK).where(
        chunk.c.session_key == session_key, chunk.c.position.in_(positions)
    )
    rows = await tx.fetch(statement)
    return {row.position: logged_of(row).chunk.as_text() for row in rows}


_CHUNK: tuple[ColumnElement[Any], ...] = (
    chunk.c.position,
    chunk.c.producer_id,
    chunk.c.producer_sequence,
    chunk.c.created_at,
    chunk.c.kind,
    chunk.c.text,
    chunk.c.role,
    chunk.c.observation,
    chunk.c.thought,
    chunk.c.action,
    chunk.c.observed_first,
    chunk.c.thread,
    chunk.c.source,
    chunk.c.occurred_at,
    chunk.c.redaction_id,
    chunk.c.metadata,
    literal_column(source_trust.of_chunk("chunk")).label("trust"),
)
_AFTER = Ready(
    select(*_CHUNK)
    .where(chunk.c.session_key == bindparam("session"), chunk.c.position > bindparam("after"))
    .order_by(chunk.c.position)
    .limit(bindparam("count"))
)
#: The columns of a chunk for `logged_of`, where c is a subquery that has them.
FOUND_COLUMNS = ", ".join(f"c.{column.name}" for column in _CHUNK)
#: The same, where c is the table of chunks.
CHUNK_COLUMNS = FOUND_COLUMNS.replace("c.trust", f"{source_trust.of_chunk()} AS trust")
#: The same without its metadata, of which a tiny chunk may have 70 KB.
CONTENT_COLUMNS = CHUNK_COLUMNS.replace("c.metadata", "NULL AS metadata")


_KINDS = {kind.value: kind for kind in ChunkKind}


_TRUSTS: Mapping[str | None, Trust] = {None: Trust.TRUSTED, **{one.value: one for one in Trust}}


def logged_of(row: Sequence[Any]) -> LoggedChunk:
    """Returns a chunk from a row of CHUNK_COLUMNS, as steps, searches and answers read it."""
    return stored_of(row).for_readers()


def stored_of(row: Sequence[Any]) -> LoggedChunk:
    """Returns a chunk from a row of CHUNK_COLUMNS as it is stored, also of a blocked source."""
    return LoggedChunk(
        position=row[0],
        producer_id=row[1],
        producer_sequence=row[2],
        created_at=row[3],
        trust=_TRUSTS[row[16]],
        chunk=Chunk(
            kind=_KINDS[row[4]],
            text=row[5],
            role=row[6],
            observation=row[7],
            thought=row[8],
            action=row[9],
            observed_first=row[10],
            thread=row[11] or "",
            source=row[12] or "",
            occurred_at=row[13],
            metadata=row[15] or {},
            is_redacted=row[14] is not None,
        ),
        redaction_id=row[14],
    )
