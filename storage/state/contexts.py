"""Reads working contexts: the vectors in use and the chunks after them, at one moment.

A stalled memory may lag by a hundred thousand chunks, so recent chunks are counted first, and read
only within the limits.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from uuid import UUID

from service.domain.log.chunks import LoggedChunk
from service.domain.state.vectors import State, VectorLevels
from storage.engine.database import Transaction
from storage.log.chunks import CHUNK_COLUMNS, CONTENT_BYTES, logged_of
from storage.memories import memories
from storage.memories.memories import StoredMemory
from storage.state.vectors import VECTOR_COLUMNS, vector_of

#: Recent chunks whose sizes are read; the others are estimated by these.
MAX_SIZED_CHUNKS = 10_000

_RECENT_SIZES = f"""
SELECT r.after, coalesce(
    sum({CONTENT_BYTES}) * greatest(%(upto)s - r.after, 1) / greatest(count(c.position), 1), 0
)::bigint AS bytes
FROM unnest(%(after)s::bigint[]) AS r (after)
LEFT JOIN chunk c ON c.session_key = %(session)s
    AND c.position > r.after AND c.position <= least(%(upto)s, r.after + {MAX_SIZED_CHUNKS})
GROUP BY r.after
"""  # noqa: S608 - all of it is ours


async def recent_sizes(
    tx: Transaction, session_key: UUID, *, after: Collection[int], upto: int
) -> dict[int, int]:
    """Returns the bytes of the chunks in (one of `after`, upto]; estimated of very many."""
    values = {"session": session_key, "after": sorted(set(after)), "upto": upto}
    return {row.after: row.bytes for row in await tx.fetch(_RECENT_SIZES, values)}


@dataclass(frozen=True, kw_only=True, slots=True)
class ContextBounds:
    """Limits on the recent chunks of a context."""

    chunks: int
    #: Bytes of their content in UTF-8.
    content_bytes: int
    #: Bytes of their metadata as JSON, which is read with the content.
    metadata_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredContext:
    """A memory, and the working context of one of its revisions, if there is one."""

    memory: StoredMemory
    #: Chunks up to here do not wait for more.
    flush_position: int
    #: The database's clock.
    now: datetime
    #: None when the memory has no such revision, or is of another kind.
    state: State | None
    #: When the vectors in use were committed, by their revisions.
    created_at: Mapping[int, datetime]
    #: The last position of the recent chunks.
    upto: int
    #: Empty when they exceed the bounds.
    recent: Sequence[LoggedChunk]

    @property
    def recent_chunks(self) -> int:
        """Number of recent chunks, within the bounds or not."""
        return 0 if self.state is None else self.upto - self.state.applied_position

    @property
    def is_whole(self) -> bool:
        """Whether it has all recent chunks."""
        return len(self.recent) == self.recent_chunks


#: What a read returns: the newest revision and all chunks after it …
_NEWEST = """
SELECT m.revision, m.applied_position, s.head AS upto
FROM memory m JOIN session s ON s.session_key = m.session_key
WHERE m.session_key = %(session)s AND m.memory_id = %(memory)s AND m.kind = 'state'
"""

_PAST = """
SELECT r.revision, r.to_position AS applied_position, {upto} AS upto
FROM memory m JOIN session s ON s.session_key = m.session_key
JOIN revision r ON r.session_key = m.session_key AND r.memory_id = m.memory_id
    AND r.revision = {number}
WHERE m.session_key = %(session)s AND m.memory_id = %(memory)s AND m.kind = 'state'
"""

#: … or a revision alone, …
_REVISION = _PAST.format(number="%(at)s", upto="r.to_position")

#: … or, for a position, the newest revision that contains nothing after it: the one before the step
#: that read further, if there was one.
_AT_POSITION = _PAST.format(
    number="""coalesce((
        SELECT CASE WHEN to_position > %(at)s THEN revision - 1 END FROM revision
        WHERE session_key = %(session)s AND memory_id = %(memory)s
            AND to_position > from_position AND from_position <= %(at)s
            AND NOT set_aside AND kind <> 'quarantine'
        ORDER BY from_position DESC LIMIT 1
    ), m.revision)""",
    upto="least(s.head, %(at)s)",
)

# All three first determine what to read, and then look it up by its key, whatever table sizes the
# planner expects: a subquery in an index's condition does that.

#: The memory, and the last vector of each level, the highest first; where the first level
#: begins anew it is the task prompt.
_MEMORY = f"""
WITH reached AS MATERIALIZED ({{reached}})
SELECT {memories.COLUMNS}, m.flush_position, now(), reached.revision, reached.applied_position,
    reached.upto, l.runs, (
        SELECT json_agg(
            json_build_array(
                {VECTOR_COLUMNS}, (extract(epoch FROM v.created_at) * 1000000)::bigint
            ) ORDER BY v.level DESC
        )
        FROM state_vector v
        WHERE v.session_key = %(session)s AND v.memory_id = %(memory)s
            AND v.revision = ANY (ARRAY(
                SELECT coalesce((r.run -> -1)::bigint, CASE WHEN r.level = 1 THEN 0 END)
                FROM jsonb_array_elements(l.runs) WITH ORDINALITY AS r (run, level)
            ))
    )
{memories.FROM}
LEFT JOIN reached ON true
LEFT JOIN LATERAL (
    SELECT runs FROM state_levels
    WHERE session_key = %(session)s AND memory_id = %(memory)s
        AND revision = reached.revision
    OFFSET 0
) AS l ON true
{memories.WHERE}
"""  # noqa: S608 - all of it is ours

_RECENT = f"""
WITH reached AS MATERIALIZED ({{reached}}),
fitting AS MATERIALIZED (
    SELECT applied_position, upto FROM reached
    WHERE upto - applied_position <= %(max_chunks)s AND (
        SELECT coalesce(sum({CONTENT_BYTES}), 0) <= %(max_bytes)s
            AND coalesce(sum(octet_length(c.metadata::text)), 0) <= %(max_metadata)s
        FROM chunk c
        WHERE c.session_key = %(session)s AND c.position > applied_position
            AND c.position <= upto AND upto - applied_position <= %(max_chunks)s
    )
)
SELECT {CHUNK_COLUMNS} FROM chunk c
WHERE c.session_key = %(session)s
    AND c.position > (SELECT applied_position FROM fitting)
    AND c.position <= (SELECT upto FROM fitting)
ORDER BY c.position
"""  # noqa: S608


def _queries(reached: str) -> Sequence[str]:
    return [query.format(reached=reached) for query in (_MEMORY, _RECENT)]


_READ_NEWEST = _queries(_NEWEST)
_READ_AT_POSITION = _queries(_AT_POSITION)
_READ_REVISION = _queries(_REVISION)

#: No position or revision exceeds it.
_MAX_BIGINT = 2**63 - 1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_Key = tuple[UUID, UUID]


async def read_newest(tx: Transaction, key: _Key, bounds: ContextBounds) -> StoredContext | None:
    """Returns the context of this moment, in one round trip; None when there is no memory.

    `key` is the session's and the memory's.
    """
    return await _read(tx, _READ_NEWEST, key, bounds, 0)


async def read_at_position(
    tx: Transaction, key: _Key, bounds: ContextBounds, position: int
) -> StoredContext | None:
    """Returns the context when the log ended at a position; as `read_newest`."""
    return await _read(tx, _READ_AT_POSITION, key, bounds, position)


async def read_revision(
    tx: Transaction, key: _Key, bounds: ContextBounds, revision: int
) -> StoredContext | None:
    """Returns the vectors of a revision, without recent chunks; as `read_newest`."""
    return await _read(tx, _READ_REVISION, key, bounds, revision)


async def _read(
    tx: Transaction, queries: Sequence[str], key: _Key, bounds: ContextBounds, at: int
) -> StoredContext | None:
    session_key, memory_id = key
    values = {
        "session": session_key,
        "memory": memory_id,
        "max_chunks": bounds.chunks,
        "max_bytes": bounds.content_bytes,
        "max_metadata": bounds.metadata_bytes,
        "at": min(at, _MAX_BIGINT),
    }
    found, chunks = await tx.pipeline(queries, values, snapshot=True)
    if not found:
        return None
    *columns, flush_position, now, revision, applied_position, upto, runs, stack = found[0]
    state = None
    created_at: dict[int, datetime] = {}
    if runs is not None:
        state = State(
            revision=revision,
            applied_position=applied_position,
            levels=VectorLevels.from_json(runs),
            stack=tuple(vector_of(row[:-1]) for row in stack),
        )
        created_at = {
            vector.revision: _EPOCH + timedelta(microseconds=row[-1])
            for vector, row in zip(state.stack, stack, strict=True)
        }
    return StoredContext(
        memory=memories.from_row(columns),
        flush_position=flush_position,
        now=now,
        state=state,
        created_at=created_at,
        upto=upto or 0,
        recent=[logged_of(row) for row in chunks],
    )
