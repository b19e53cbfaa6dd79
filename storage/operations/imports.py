"""Writes an imported session: hidden, block by block, until it is complete and verified.

Until then its row is a tombstone, as that of a deleted session, and a `removal` waits for
some days: so nothing reads it, its name is not free, and what is never completed is removed by
workers.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import psycopg
from psycopg.types.json import Jsonb

from service.domain.log.chunks import Chunk, ChunkKind
from service.domain.operations.transfer import records
from service.domain.operations.transfer.records import RecordKind
from service.domain.tree.nodes import TextOffset
from storage.engine.database import Transaction, first
from storage.log.deleting import REMOVING

#: Exports of a lineage: an older ancestor of a copy is not known.
MAX_LINEAGE = 100


class RowsRefused(ValueError):
    """The database does not accept the rows: a value is not what its column may have."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredImport:
    """An import, finished or not."""

    export_id: UUID
    source_session: str
    exported_at: datetime
    head: int
    memories: int
    #: The last line that is stored, its digest, and the records up to it.
    line: int
    digest: bytes
    counts: Mapping[str, int]
    created_at: datetime
    finished_at: datetime | None


_COLUMNS = ", ".join(StoredImport.__dataclass_fields__)
_GET = f"SELECT {_COLUMNS} FROM session_import WHERE session_key = %(session)s"  # noqa: S608 - ours
_REMOVAL = "SELECT true FROM removal WHERE session_key = %(session)s FOR UPDATE"
_HIDE = """
INSERT INTO session (session_key, tenant_id, name, deleted_at)
VALUES (%(session)s, %(tenant)s, %(name)s, now())
ON CONFLICT (session_key, tenant_id) DO NOTHING
"""
_IS_HIDDEN = """
SELECT deleted_at IS NOT NULL FROM session WHERE session_key = %(session)s FOR UPDATE
"""
_WAIT = """
INSERT INTO removal (session_key, item_id, tenant_id, ready_at)
VALUES (%(session)s, %(session)s, %(tenant)s, now() + make_interval(days => %(keep)s::integer))
"""
_RECORD = """
INSERT INTO session_import (session_key, tenant_id, export_id, source_session, exported_at, head,
    memories, line, digest, lineage)
VALUES (%(session)s, %(tenant)s, %(export)s, %(source)s, %(exported)s, %(head)s, %(memories)s, 1,
    '', coalesce((
        SELECT (i.export_id || i.lineage)[:%(most)s] FROM session_export e
        JOIN session_import i USING (session_key) WHERE e.export_id = %(export)s LIMIT 1), '{}'))
"""


async def get(tx: Transaction, session_key: UUID) -> StoredImport | None:
    """Returns the import that made a session, or makes it; None when none does."""
    row = first(await tx.fetch(_GET, {"session": session_key}, prepare=None))
    if row is None:
        return None
    return StoredImport(**{**row._asdict(), "digest": bytes(row.digest)})


async def begin(
    tx: Transaction,
    session_key: UUID,
    name: str,
    *,
    export_id: UUID,
    source: str,
    exported_at: datetime,
    head: int,
    memories: int,
    keep_days: int,
) -> bool:
    """Begins an import; False when there is a session of that name, also a hidden one."""
    values = {
        "session": session_key,
        "tenant": tx.tenant_id,
        "name": name,
        "export": export_id,
        "source": source,
        "exported": exported_at,
        "head": head,
        "memories": memories,
        "most": MAX_LINEAGE,
        "keep": keep_days,
    }
    await tx.execute(REMOVING, prepare=None)
    await tx.execute(_HIDE, values, prepare=None)
    hidden = await tx.fetch(_IS_HIDDEN, values, prepare=None)
    if not hidden[0][0] or await tx.fetch(_REMOVAL, values, prepare=None):
        return False
    await tx.execute(_WAIT, values, prepare=None)
    await tx.execute(_RECORD, values, prepare=None)
    return True


_ADVANCE = """
UPDATE session_import SET line = %(line)s, digest = %(digest)s, counts = %(counts)s
WHERE session_key = %(session)s AND export_id = %(export)s AND line = %(before)s
    AND finished_at IS NULL AND NOT EXISTS (
        SELECT FROM tenant t WHERE t.tenant_id = %(tenant)s AND t.deleted_at IS NOT NULL)
"""
_LATER = """
UPDATE removal SET ready_at = now() + make_interval(days => %(keep)s::integer)
WHERE session_key = %(session)s
"""


async def advance(
    tx: Transaction,
    session_key: UUID,
    export_id: UUID,
    *,
    before: int,
    line: int,
    digest: bytes,
    counts: Mapping[str, int],
    keep_days: int,
) -> bool:
    """Moves an import on from line `before`; False when it, or its tenant, was deleted.

    A compare-and-set, under the lock that a removal needs: two streams never write one block.
    """
    values = {
        "session": session_key,
        "tenant": tx.tenant_id,
        "export": export_id,
        "before": before,
        "line": line,
        "digest": digest,
        "counts": Jsonb(dict(counts)),
        "keep": keep_days,
    }
    await tx.execute(REMOVING, prepare=None)
    if not await tx.fetch(_REMOVAL, values, prepare=None):
        return False
    if not await tx.execute(_ADVANCE, values, prepare=None):
        return False
    await tx.execute(_LATER, values, prepare=None)
    return True


_ABANDON = """
UPDATE removal SET ready_at = now() WHERE session_key = %(session)s AND EXISTS (
    SELECT FROM session_import i WHERE i.session_key = removal.session_key
        AND i.finished_at IS NULL)
"""


async def abandon(tx: Transaction, session_key: UUID) -> bool:
    """Has an unfinished import removed; False when there is none."""
    return bool(await tx.execute(_ABANDON, {"session": session_key}, prepare=None))


#: Columns that are computed: their names and their SQL.
_COMPUTED: dict[str, tuple[str, str]] = {
    "request": (
        "method, digest",
        """'Append', coalesce(r.digest, (
            SELECT sha256(string_agg(c.digest, ''::bytea ORDER BY c.position))
            FROM chunk c WHERE c.session_key = %(session)s
                AND c.position BETWEEN r.first_position AND r.last_position), sha256(''))""",
    ),
    "revision": ("parent_revision, epoch", "r.revision - 1, %(epoch)s::bigint"),
    "node": ("words", "to_tsvector('simple', r.leaf)"),
}
#: What a record has besides its fields, for those.
_BESIDE = {"node": "leaf text"}


def _insert(kind: RecordKind) -> str:
    names, values = _COMPUTED.get(kind.name, ("", ""))
    fields = [field for field in kind.fields if field.name != "memory"]
    plain = [field for field in fields if field.name not in names.split(", ")]
    columns = ["session_key", "tenant_id", *(field.name for field in plain)]
    # JSON comes as text: its null is a value.
    read = [
        f"r.{field.name}::jsonb" if field.type == "jsonb" else f"r.{field.name}" for field in plain
    ]
    sources = ["%(session)s::uuid", "%(tenant)s::uuid", *read]
    types = [f"{field.name} {'text' if field.type == 'jsonb' else field.type}" for field in fields]
    if kind.name in _BESIDE:
        types.append(_BESIDE[kind.name])
    if kind.of_memory:
        columns.append("memory_id")
        sources.append("%(memory)s::uuid")
    if kind in (records.ANSWER, records.BUDGET, records.USAGE):
        columns.append("memory_id" if kind is records.ANSWER else "owner_id")
        sources.append("r.owner")
        types.append("owner uuid")
    if names:
        columns.append(names)
        sources.append(values)
    return f"""INSERT INTO {kind.table} ({", ".join(columns)}) SELECT {", ".join(sources)}
        FROM jsonb_to_recordset(%(rows)s::jsonb) AS r ({", ".join(types)})"""  # noqa: S608 - ours


_INSERTS = {
    kind.name: _insert(kind)
    for kind in records.KINDS.values()
    if kind not in (records.SESSION, records.MEMORY, records.CURSOR)
}


async def insert(
    tx: Transaction,
    session_key: UUID,
    kind: RecordKind,
    rows: Sequence[Mapping[str, Any]],
    *,
    memory_id: UUID | None = None,
) -> None:
    """Writes rows of one kind, of one memory if they belong to one.

    Raises RowsRefused; what breaks a key or a check is Violated, as of any statement.
    """
    values: dict[str, Any] = {
        "session": session_key,
        "tenant": tx.tenant_id,
        "memory": memory_id,
        "rows": json.dumps(rows, ensure_ascii=False),
    }
    statement = _INSERTS[kind.name]
    if kind is records.REVISION:
        values["epoch"] = await _epoch(tx, session_key)
    await _run(tx, statement, values)


async def _epoch(tx: Transaction, session_key: UUID) -> int:
    """Returns the epoch of the revisions: greater than that of deleted memories."""
    query = "SELECT first_epoch FROM session WHERE session_key = %s"
    return int((await tx.fetch(query, (session_key,)))[0][0])


async def _run(tx: Transaction, statement: str, values: Mapping[str, Any]) -> None:
    try:
        await tx.execute(statement, values, prepare=None)
    except (psycopg.DataError, psycopg.errors.ProgramLimitExceeded) as error:
        raise RowsRefused(error.diag.message_primary or "a value is invalid") from error


def chunk_of(row: Mapping[str, Any]) -> Chunk:
    """Returns the chunk of a record. Raises ValueError."""
    at = row["occurred_at"]
    return Chunk(
        kind=ChunkKind(row["kind"]),
        text=row["text"],
        role=row["role"],
        observation=row["observation"],
        thought=row["thought"],
        action=row["action"],
        observed_first=row["observed_first"],
        thread=row["thread"] or "",
        source=row["source"] or "",
        occurred_at=None if at is None else datetime.fromisoformat(at),
        metadata=json.loads(row["metadata"]) if row["metadata"] is not None else {},
        is_redacted=row["redaction_id"] is not None,
    )


_SET_SESSION = """
UPDATE session SET language = %(language)s, metadata = %(metadata)s::jsonb,
    default_memory = %(default_memory)s, created_at = %(created_at)s::timestamptz,
    retention = %(retention)s::jsonb,
    trajectories_expired_at = %(trajectories_expired_at)s::timestamptz,
    expired_position = %(expired_position)s
WHERE session_key = %(session)s
"""


async def set_session(tx: Transaction, session_key: UUID, row: Mapping[str, Any]) -> None:
    """Writes what the hidden session has of its own."""
    await _run(tx, _SET_SESSION, {**row, "session": session_key})


_GROW = """
UPDATE session SET head = head + %(chunks)s, content_bytes = content_bytes + %(bytes)s
WHERE session_key = %(session)s RETURNING head
"""


async def grow(tx: Transaction, session_key: UUID, *, chunks: int, size_bytes: int) -> int:
    """Counts chunks of the hidden session; returns its head."""
    values = {"session": session_key, "chunks": chunks, "bytes": size_bytes}
    return int((await tx.fetch(_GROW, values, prepare=None))[0][0])


# Hidden, as the session: the two tables refer to each other.
_ADD_MEMORY = """
WITH made AS (
    INSERT INTO memory (session_key, memory_id, tenant_id, name, kind, spec, created_at,
        rebuilt_from, epoch, entry_revision, deleted_at)
    VALUES (%(session)s, %(memory)s, %(tenant)s, %(name)s, %(kind)s, %(spec)s::jsonb,
        %(created_at)s::timestamptz, %(rebuilt_from)s, %(epoch)s, -1, now())
)
INSERT INTO revision (session_key, memory_id, tenant_id, revision, from_position, to_position,
    kind, digest, epoch, created_at)
VALUES (%(session)s, %(memory)s, %(tenant)s, 0, 0, 0, 'create', %(digest)s::bytea, %(epoch)s,
    %(created_at)s::timestamptz)
"""


async def add_memory(
    tx: Transaction, session_key: UUID, memory_id: UUID, row: Mapping[str, Any]
) -> None:
    """Writes a memory with its first revision."""
    epoch = await _epoch(tx, session_key)
    values = {
        **row,
        "session": session_key,
        "memory": memory_id,
        "tenant": tx.tenant_id,
        "epoch": epoch,
    }
    await _run(tx, _ADD_MEMORY, values)


_END_OF_LEAVES = """
SELECT end_position, end_offset FROM tree_node
WHERE session_key = %(session)s AND memory_id = %(memory)s AND level = 0
ORDER BY number DESC LIMIT 1
"""


async def end_of_leaves(tx: Transaction, session_key: UUID, memory_id: UUID) -> TextOffset:
    """Returns where the last leaf of a tree ends; without one, where the log begins."""
    values = {"session": session_key, "memory": memory_id}
    row = first(await tx.fetch(_END_OF_LEAVES, values, prepare=None))
    return TextOffset(1) if row is None else TextOffset(row.end_position, row.end_offset)


_SET_CURSOR = """
UPDATE memory SET revision = %(revision)s, applied_position = %(applied_position)s,
    status = %(status)s, consolidated_tokens = %(consolidated_tokens)s,
    fold_state = %(fold_state)s::jsonb, losses = %(losses)s::jsonb,
    seal_position = %(seal_position)s, reread_positions = %(reread_positions)s::bigint[],
    thinned_revision = %(thinned_revision)s,
    schema_source = (SELECT r.schema_source FROM revision r WHERE r.session_key = %(session)s
        AND r.memory_id = %(memory)s AND r.kind = 'schema' ORDER BY r.revision DESC LIMIT 1)
WHERE session_key = %(session)s AND memory_id = %(memory)s
"""
_SET_VALUE = """
INSERT INTO prism_value (session_key, memory_id, tenant_id, revision, value, unsaved_amendments)
SELECT %(session)s, %(memory)s, %(tenant)s, %(revision)s, %(value)s, (
    SELECT count(*) FROM amendment a WHERE a.session_key = %(session)s
        AND a.memory_id = %(memory)s AND a.revision > greatest(
            (SELECT max(b.revision) FROM prism_base b WHERE b.session_key = %(session)s
                AND b.memory_id = %(memory)s),
            (SELECT max(n.revision) FROM prism_snapshot n WHERE n.session_key = %(session)s
                AND n.memory_id = %(memory)s)))
"""


async def set_cursor(
    tx: Transaction, session_key: UUID, memory_id: UUID, row: Mapping[str, Any]
) -> None:
    """Writes how far a memory is."""
    values = {**row, "session": session_key, "memory": memory_id}
    await _run(tx, _SET_CURSOR, values)


async def set_value(
    tx: Transaction, session_key: UUID, memory_id: UUID, revision: int, value: str
) -> None:
    """Writes the newest value of a PRISM memory, which an export does not have."""
    values = {
        "session": session_key,
        "memory": memory_id,
        "tenant": tx.tenant_id,
        "revision": revision,
        "value": value,
    }
    await _run(tx, _SET_VALUE, values)


_WRONG_PRODUCER = """
SELECT p.producer_id FROM producer p LEFT JOIN (
    SELECT producer_id, max(producer_sequence) AS last,
        bool_and(producer_sequence = place) AS in_order
    FROM (SELECT producer_id, producer_sequence,
            row_number() OVER (PARTITION BY producer_id ORDER BY position) AS place
        FROM chunk WHERE session_key = %(session)s) AS numbered
    GROUP BY producer_id) AS c USING (producer_id)
WHERE p.session_key = %(session)s
    AND (p.last_sequence <> coalesce(c.last, 0) OR c.in_order IS FALSE)
ORDER BY p.producer_id LIMIT 1
"""


async def wrong_producer(tx: Transaction, session_key: UUID) -> str | None:
    """Returns a producer whose chunks are not numbered up to its last sequence, if there is one."""
    row = first(await tx.fetch(_WRONG_PRODUCER, {"session": session_key}, prepare=None))
    return None if row is None else str(row.producer_id)


# A worker that finds nothing to do for a memory says so.
_SHOW_MEMORIES = """
UPDATE memory SET deleted_at = NULL, ready_at = now(), has_work = status = 'active'
WHERE session_key = %(session)s
"""
_SHOW = """
UPDATE session SET deleted_at = NULL, has_unindexed = true, index_ready_at = now(),
    words_ready_at = now(), imported_from = (
        SELECT jsonb_build_object('session', source_session, 'export_id', export_id,
            'exported_at', exported_at, 'imported_at', now())
        FROM session_import i WHERE i.session_key = session.session_key)
WHERE session_key = %(session)s
"""
_FINISH = """
UPDATE session_import SET finished_at = now(), line = %(line)s WHERE session_key = %(session)s
"""
# In the tenant where the session was exported, the copy keeps out what that session does.
_KEEP_OUT = """
WITH rules AS (
    INSERT INTO keep_out (session_key, words, digest, tenant_id, redaction_id)
    SELECT i.session_key, k.words, k.digest, k.tenant_id, k.redaction_id
    FROM session_import i JOIN session_export e ON e.export_id = i.export_id
    JOIN keep_out k ON k.session_key = e.session_key
    WHERE i.session_key = %(session)s ON CONFLICT DO NOTHING RETURNING 1
)
UPDATE session SET keeps_out = EXISTS (SELECT FROM rules) WHERE session_key = %(session)s
"""
_KEEP = "DELETE FROM removal WHERE session_key = %(session)s"


async def show(tx: Transaction, session_key: UUID, line: int) -> None:
    """Makes an imported session visible. The caller has it from `advance`."""
    values = {"session": session_key, "line": line}
    for statement in (_SHOW_MEMORIES, _SHOW, _KEEP_OUT, _FINISH, _KEEP):
        await tx.execute(statement, values, prepare=None)
