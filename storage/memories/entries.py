"""Writes the entries of memories, which searches find, with the revisions that change them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from service.domain.search.entries import Entry, EntryChanges, WrittenEntry
from storage.engine.database import Transaction, value
from storage.engine.text_search import length_of

#: Entries that one statement writes when a memory's are written again: 0.2 s, which steps wait for.
BATCH_ENTRIES = 200

_COLUMNS = {
    "entry_id": "uuid",
    "path": "text",
    "part": "integer",
    "value": "text",
    "text": "text",
    "revision": "bigint",
    "first_position": "bigint",
    "last_position": "bigint",
    "source": "uuid",
    "is_moved": "boolean",
}
# SELECT: arrays that the planner does not know, so that a plan is kept: to plan a step's statement
# anew takes as long as to run it.
_ARRAYS = ", ".join(f"(SELECT %(entry_{name})s::{of}[])" for name, of in _COLUMNS.items())


def writing(guard: str, session: str, memory: str) -> str:
    """Returns the parts of a WITH that write entries, if the relation `guard` has a row.

    `session` and `memory` are SQL of the key. They go with the values of `written_values`. What
    an entry replaces is read as of before the statement.
    """
    return f"""
entry_written AS (
    INSERT INTO memory_entry (session_key, memory_id, entry_id, tenant_id, path, part, value,
        words, length, revision, first_position, last_position, model, embedding)
    SELECT {session}, {memory}, new.entry_id, %(tenant)s, new.path, new.part, new.value, new.words,
        {length_of("new.words")},
        CASE WHEN new.is_moved THEN old.revision ELSE new.revision END,
        CASE WHEN new.is_moved THEN old.first_position
            ELSE coalesce(new.first_position, old.first_position, 0) END,
        CASE WHEN new.is_moved THEN old.last_position
            ELSE coalesce(new.last_position, old.last_position, 0) END,
        CASE WHEN old.is_same THEN old.model END, CASE WHEN old.is_same THEN old.embedding END
    FROM (
        SELECT t.*, to_tsvector((
                SELECT language FROM session WHERE session_key = {session}
            )::regconfig, t.text) AS words
        FROM {guard}, unnest({_ARRAYS}) AS t ({", ".join(_COLUMNS)})
        OFFSET 0
    ) AS new
    LEFT JOIN LATERAL (
        SELECT *, new.is_moved OR (path, part, value) = (new.path, new.part, new.value) AS is_same
        FROM memory_entry
        WHERE session_key = {session} AND memory_id = {memory} AND entry_id = new.source
        OFFSET 0
    ) AS old ON true
    ON CONFLICT (session_key, memory_id, entry_id) DO UPDATE SET
        value = excluded.value, words = excluded.words, length = excluded.length,
        revision = excluded.revision, first_position = excluded.first_position,
        last_position = excluded.last_position, model = excluded.model,
        embedding = excluded.embedding
),
entry_dropped AS (
    DELETE FROM memory_entry USING {guard}
    WHERE session_key = {session} AND memory_id = {memory}
        AND entry_id = ANY((SELECT %(entries_dropped)s::uuid[])::uuid[])
)"""  # noqa: S608 - all of it is ours


def written_values(changes: EntryChanges) -> dict[str, Any]:
    """Returns the values of `writing`, but for the tenant and the key."""
    rows = [_row(one) for one in changes.written]
    columns = zip(*rows, strict=True) if rows else ((),) * len(_COLUMNS)
    named = zip(_COLUMNS, map(list, columns), strict=True)
    return {
        **{f"entry_{name}": column for name, column in named},
        "entries_dropped": list(changes.dropped),
    }


def _row(one: WrittenEntry) -> tuple[object, ...]:
    entry = one.entry
    return (
        *(entry.entry_id, entry.path, entry.part, entry.value, entry.text),
        *(one.revision, one.first_position, one.last_position, one.source, one.is_moved),
    )


_OF = "session_key = %(session)s AND memory_id = %(memory)s"
_WRITE = f"""
WITH entered AS (
    SELECT FROM memory WHERE {_OF} AND revision = %(revision)s AND entry_revision = revision
),
{writing("entered", "%(session)s::uuid", "%(memory)s::uuid")}
SELECT
"""


async def write(
    tx: Transaction, session_key: UUID, memory_id: UUID, revision: int, changes: EntryChanges
) -> None:
    """Writes what `revision`, which this transaction has written, changes.

    Nothing where the entries are of an earlier revision: then all of them are missing.
    """
    if changes:
        values = {
            **_values(session_key, memory_id, revision),
            "tenant": tx.tenant_id,
            **written_values(changes),
        }
        await tx.execute(_WRITE, values, prepare=None)


# The lock keeps the revision until the commit.
_REWRITE = f"""
WITH entered AS (
    SELECT FROM memory WHERE {_OF} AND revision = %(revision)s FOR NO KEY UPDATE
),
{writing("entered", "%(session)s::uuid", "%(memory)s::uuid")}
SELECT FROM entered
"""  # noqa: S608 - all of it is ours


async def rewrite(
    tx: Transaction,
    session_key: UUID,
    memory_id: UUID,
    revision: int,
    entries: Sequence[WrittenEntry],
) -> bool:
    """Writes entries of `revision` again; False if the memory has a later one by now.

    At most BATCH_ENTRIES, since steps of the memory wait. Vectors of entries that say the same
    stay. The memory's entries are those of `revision` only after `complete`.
    """
    # Its source is what is there, whose vector it may keep.
    batch = [replace(one, source=one.entry.entry_id) for one in entries]
    values = {
        **_values(session_key, memory_id, revision),
        "tenant": tx.tenant_id,
        **written_values(EntryChanges(written=batch)),
    }
    return await tx.execute(_REWRITE, values, prepare=None) > 0


_ENTER = f"UPDATE memory SET entry_revision = revision WHERE {_OF} AND revision = %(revision)s"  # noqa: S608
_DROP_OTHERS = f"""
DELETE FROM memory_entry WHERE {_OF} AND NOT EXISTS (
    SELECT FROM unnest(%(kept)s::uuid[]) AS kept (entry_id)
    WHERE kept.entry_id = memory_entry.entry_id
)
"""  # noqa: S608 - all of it is ours


async def complete(
    tx: Transaction, session_key: UUID, memory_id: UUID, revision: int, kept: Sequence[UUID]
) -> bool:
    """Says that a memory's entries are those of `revision`, once `kept` are; others are deleted.

    False if it has a later revision by now.
    """
    values = _values(session_key, memory_id, revision)
    if not await tx.execute(_ENTER, values):
        return False
    await tx.execute(_DROP_OTHERS, {**values, "kept": list(kept)}, prepare=None)
    return True


def _values(session_key: UUID, memory_id: UUID, revision: int) -> dict[str, object]:
    return {"session": session_key, "memory": memory_id, "revision": revision}


_STORED = f"""
SELECT path, part, value, revision, first_position, last_position
FROM memory_entry WHERE {_OF}
"""  # noqa: S608 - all of it is ours


async def read_all(tx: Transaction, session_key: UUID, memory_id: UUID) -> Sequence[WrittenEntry]:
    """Returns all entries of a memory, in any order."""
    values = {"session": session_key, "memory": memory_id}
    return [
        WrittenEntry(
            entry=Entry(path=row.path, part=row.part, value=row.value),
            revision=row.revision,
            first_position=row.first_position,
            last_position=row.last_position,
        )
        for row in await tx.fetch(_STORED, values, prepare=None)
    ]


_BEHIND = """
SELECT memory_id FROM memory WHERE session_key = %(session)s AND entry_revision <> revision LIMIT 1
"""


async def find_behind(tx: Transaction, session_key: UUID) -> UUID | None:
    """Returns a memory of a session with revisions whose entries are missing."""
    found: UUID | None = value(await tx.fetch(_BEHIND, {"session": session_key}))
    return found


# Through the memory: those of a deleted one are not to be paid for.
_UNEMBEDDED = """
SELECT e.memory_id, e.path, e.part, e.value
FROM memory_entry e JOIN memory m ON m.session_key = e.session_key AND m.memory_id = e.memory_id
WHERE e.session_key = %(session)s AND e.model IS NULL LIMIT %(limit)s
"""
_WRITE_VECTORS = """
UPDATE memory_entry e SET model = %(model)s, embedding = new.embedding::real[]
FROM unnest(%(memories)s::uuid[], %(entries)s::uuid[], %(values)s::text[], %(embeddings)s::text[])
    AS new (memory_id, entry_id, value, embedding)
WHERE e.session_key = %(session)s AND e.memory_id = new.memory_id AND e.entry_id = new.entry_id
    AND e.value = new.value
"""
_FORGET_VECTORS = """
UPDATE memory_entry SET model = NULL, embedding = NULL
WHERE session_key = %(session)s AND model IS NOT NULL
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class UnembeddedEntry:
    """An entry without a vector."""

    memory_id: UUID
    entry: Entry


async def read_unembedded(
    tx: Transaction, session_key: UUID, limit: int
) -> Sequence[UnembeddedEntry]:
    """Returns up to `limit` entries of a session that have no vector."""
    values = {"session": session_key, "limit": limit}
    return [
        UnembeddedEntry(memory_id=memory_id, entry=Entry(path=path, part=part, value=said))
        for memory_id, path, part, said in await tx.fetch(_UNEMBEDDED, values)
    ]


async def write_vectors(
    tx: Transaction,
    session_key: UUID,
    model: str,
    entries: Sequence[UnembeddedEntry],
    vectors: Sequence[Sequence[float]],
) -> None:
    """Writes vectors of length 1 for entries that say what they said when they were read."""
    values = {
        "session": session_key,
        "model": model,
        "memories": [one.memory_id for one in entries],
        "entries": [one.entry.entry_id for one in entries],
        "values": [one.entry.value for one in entries],
        "embeddings": [f"{{{','.join(format(one, '.9g') for one in each)}}}" for each in vectors],
    }
    await tx.execute(_WRITE_VECTORS, values, prepare=None)


async def forget_vectors(tx: Transaction, session_key: UUID) -> None:
    """Removes the vectors of a session's entries, which are of a former model."""
    await tx.execute(_FORGET_VECTORS, {"session": session_key}, prepare=None)
