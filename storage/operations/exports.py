"""Reads a session for its export, page by page, up to a cut that was made when it began.

No transaction stays open between pages, since the client decides how fast it reads. The log and
revisions only grow, so that what is before the cut stays as it was; what can change otherwise is
read as it is at that time, where it fits the cut.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from service.domain.operations.transfer import records
from service.domain.operations.transfer.records import FIGURES, RecordKind
from service.domain.values.tenancy import memory_id
from storage.access.source_trust import matches
from storage.engine.database import Row, Transaction, first


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryCut:
    """A memory, as far as an export reads it."""

    name: str
    kind: str
    revision: int
    applied_position: int
    status: str
    created_at: datetime
    #: What it is to read again.
    reread_positions: Sequence[int] | None = None
    #: Where a tree is closed, or is to be; None: it is not.
    seal_position: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportCut:
    """What an export reads of a session."""

    export_id: UUID
    session_key: UUID
    #: As the session had it then: another one now means that it was deleted.
    incarnation: int
    head: int
    created_at: datetime
    #: By name.
    memories: Mapping[str, MemoryCut]
    #: How many redactions there were: another one changes chunks that were read.
    redactions: int
    #: Answers that were pending then.
    pending: Sequence[UUID]
    #: Up to which revisions memories were thinned, by name, where they are.
    thinned: Mapping[str, int]

    def values(self, memory: str = "") -> dict[str, Any]:
        """Returns the values that the queries of this module share."""
        values: dict[str, Any] = {
            "session": self.session_key,
            "export": self.export_id,
            "head": self.head,
            "created": self.created_at,
            "pending": list(self.pending),
            "memories": [memory_id(self.session_key, name) for name in self.memories],
            "revisions": [one.revision for one in self.memories.values()],
        }
        if memory:
            values["memory"] = memory_id(self.session_key, memory)
            values["revision"] = self.memories[memory].revision
        return values


# Those of the tenant only for sources of the session, and where no rule of the session comes first.
_BEGIN = f"""
WITH occurring AS MATERIALIZED (
    SELECT DISTINCT coalesce(c.source, '') AS source FROM chunk c
    WHERE c.session_key = %(session)s
)
INSERT INTO session_export (session_key, export_id, tenant_id, head, cut)
SELECT session_key, %(export)s::uuid, tenant_id, head, jsonb_build_object(
    'incarnation', incarnation,
    'redactions', (SELECT count(*) FROM redaction r WHERE r.session_key = s.session_key),
    'memories', coalesce((
        SELECT jsonb_agg(jsonb_build_object(
            'name', name, 'kind', kind, 'revision', revision, 'status', status,
            'applied_position', applied_position, 'created_at', created_at,
            'reread_positions', reread_positions, 'seal_position', seal_position
        ) ORDER BY name COLLATE "C")
        FROM memory m WHERE m.session_key = s.session_key), '[]'),
    'thinned', coalesce((
        SELECT jsonb_object_agg(name, thinned_revision) FROM memory m
        WHERE m.session_key = s.session_key AND m.thinned_revision > 0), '{{}}'),
    'source_rules', coalesce((
        SELECT jsonb_agg(jsonb_build_object('source', t.source, 'trust', t.trust,
            'trust_before', t.trust_before, 'updated_at', t.updated_at))
        FROM source_trust t
        WHERE t.session_key = s.session_key OR (t.session_key = s.tenant_id
            AND NOT EXISTS (SELECT FROM source_trust o WHERE o.session_key = s.session_key
                AND {matches("o.source", "t.source")})
            AND EXISTS (SELECT FROM occurring c WHERE {matches("t.source", "c.source")}))), '[]'),
    'pending', coalesce((
        SELECT jsonb_agg(answer_id) FROM answer a
        WHERE a.session_key = s.session_key AND a.status = 'pending'), '[]'))
FROM session s WHERE session_key = %(session)s AND deleted_at IS NULL
FOR KEY SHARE OF s
RETURNING export_id, session_key, head, cut, created_at
"""  # noqa: S608 - all of it is ours
_FIND = """
SELECT export_id, session_key, head, cut, created_at FROM session_export
WHERE session_key = %(session)s AND export_id = %(export)s
"""


async def begin(tx: Transaction, session_key: UUID, export_id: UUID) -> ExportCut | None:
    """Makes a cut now, in one statement, and records the export; None without a session."""
    values = {"session": session_key, "export": export_id}
    row = first(await tx.fetch(_BEGIN, values, prepare=None))
    return None if row is None else _cut(row)


async def find(tx: Transaction, session_key: UUID, export_id: UUID) -> ExportCut | None:
    """Returns the cut of an export; None when the session has no such export."""
    values = {"session": session_key, "export": export_id}
    row = first(await tx.fetch(_FIND, values, prepare=None))
    return None if row is None else _cut(row)


def _cut(row: Row) -> ExportCut:
    memories = (
        MemoryCut(**{**one, "created_at": datetime.fromisoformat(one["created_at"])})
        for one in row.cut["memories"]
    )
    return ExportCut(
        export_id=row.export_id,
        session_key=row.session_key,
        incarnation=row.cut["incarnation"],
        head=row.head,
        redactions=row.cut["redactions"],
        created_at=row.created_at,
        memories={one.name: one for one in memories},
        pending=[UUID(one) for one in row.cut["pending"]],
        thinned=row.cut.get("thinned", {}),
    )


async def finish(tx: Transaction, cut: ExportCut) -> None:
    """Records that the end of an export was sent."""
    query = (
        "UPDATE session_export SET finished_at = now() WHERE session_key = %s AND export_id = %s"
    )
    await tx.execute(query, (cut.session_key, cut.export_id))


_IS_REDACTING = """
SELECT true FROM redaction
WHERE session_key = %(session)s AND cardinality(positions) > 0 LIMIT 1
"""


async def is_redacting(tx: Transaction, session_key: UUID) -> bool:
    """Returns whether what was derived from redacted chunks is still being removed."""
    return bool(await tx.fetch(_IS_REDACTING, {"session": session_key}, prepare=None))


_REDACTED_SINCE = """
SELECT s.name, (SELECT count(*) FROM redaction r WHERE r.session_key = e.session_key)
    - (e.cut ->> 'redactions')::bigint AS redactions
FROM session_export e JOIN session s USING (session_key) WHERE e.export_id = %(export)s
"""


async def redacted_since(tx: Transaction, export_id: UUID) -> tuple[str, int]:
    """Returns the tenant's session whose export it is, and how many redactions came after it.

    Those of retention are among them. Without such a session there were none.
    """
    rows = await tx.fetch(_REDACTED_SINCE, {"export": export_id}, prepare=None)
    return (rows[0].name, rows[0].redactions) if rows else ("", 0)


_UNCHANGED = """
SELECT s.incarnation = %(incarnation)s AND %(redactions)s = (
    SELECT count(*) FROM redaction r WHERE r.session_key = s.session_key
) AND (%(memory)s::uuid IS NULL OR EXISTS (
    SELECT FROM memory m WHERE m.session_key = s.session_key AND m.memory_id = %(memory)s
        AND m.created_at = %(made)s AND m.thinned_revision = %(thinned)s
        AND NOT EXISTS (SELECT FROM revision r WHERE r.session_key = m.session_key
            AND r.memory_id = m.memory_id AND r.revision = %(revision)s AND r.set_aside)))
FROM session s WHERE s.session_key = %(session)s
"""


async def is_there(tx: Transaction, cut: ExportCut, memory: str) -> bool:
    """Returns whether the session is the same as at the cut, and the memory if one is named.

    It is not once chunks of it were redacted, or the memory was thinned or
    taken back by a quarantine: rows that were not read yet are gone.
    """
    values = {
        "session": cut.session_key,
        "incarnation": cut.incarnation,
        "redactions": cut.redactions,
        "memory": memory_id(cut.session_key, memory) if memory else None,
        "made": cut.memories[memory].created_at if memory else None,
        "thinned": cut.thinned.get(memory, 0),
        "revision": cut.memories[memory].revision if memory else None,
    }
    rows = await tx.fetch(_UNCHANGED, values, prepare=None)
    return bool(rows and rows[0][0])


_MEMORY_NAME = """(SELECT m.name FROM memory m WHERE m.session_key = t.session_key
    AND m.memory_id = t.{owner})"""
_OWNER = f"coalesce({_MEMORY_NAME.format(owner='owner_id')}, '')"
#: What a column is read from, where that is not the column itself.
_SOURCES: dict[str, dict[str, str]] = {
    "chunk": {"digest": "CASE WHEN t.redaction_id IS NOT NULL THEN t.digest END"},
    "request": {
        "digest": """CASE WHEN EXISTS (SELECT FROM chunk c WHERE c.session_key = t.session_key
            AND c.position BETWEEN t.first_position AND t.last_position
            AND c.redaction_id IS NOT NULL) THEN t.digest END"""
    },
    "producer": {
        # What the producer had sent up to the cut.
        "last_sequence": """coalesce((SELECT c.producer_sequence FROM chunk c
            WHERE c.session_key = t.session_key AND c.producer_id = t.producer_id
                AND c.position <= %(head)s
            ORDER BY c.producer_sequence DESC LIMIT 1), 0)"""
    },
    "memory": {
        "digest": """(SELECT r.digest FROM revision r WHERE r.session_key = t.session_key
            AND r.memory_id = t.memory_id AND r.revision = 0)"""
    },
    "answer": {
        "memory": _MEMORY_NAME.format(owner="memory_id"),
        # The id of a memory depends on its session.
        "chosen": """CASE WHEN jsonb_typeof(chosen->'memory_id') = 'string' THEN jsonb_set(
            chosen, '{memory_id}', coalesce(to_jsonb((SELECT m.name FROM memory m
                WHERE m.session_key = t.session_key
                    AND m.memory_id = (chosen->>'memory_id')::uuid)), 'null'))
            ELSE chosen END""",
    },
    "budget": {"memory": _OWNER},
    "usage": {"memory": _OWNER},
}
_BY_REVISION = "t.revision <= %(revision)s"
#: What an export leaves out.
_WHERE = {
    "chunk": "t.position <= %(head)s",
    "request": "t.method = 'Append' AND t.last_position <= %(head)s",
    "memory": "t.memory_id = %(memory)s",
    "revision": f"t.revision > 0 AND {_BY_REVISION}",
    "dead_letter": "t.to_position <= %(head)s AND t.created_at <= %(created)s",
    "answer": """t.status <> 'pending' AND t.created_at <= %(created)s
        AND t.answer_id <> ALL(%(pending)s::uuid[])
        AND (t.memory_id IS NULL OR EXISTS (
            SELECT FROM unnest(%(memories)s::uuid[], %(revisions)s::bigint[]) AS m (id, revision)
            WHERE m.id = t.memory_id AND t.revision <= m.revision))
        AND NOT EXISTS (SELECT FROM jsonb_array_elements(t.citations) AS cited
            WHERE (cited->>'position')::bigint > %(head)s)""",
    "event": "t.answer_id = %(answer)s",
    "rating": "t.answer_id = %(answer)s",
}
# With what was imported, so that a session that was exported twice has all of it.
_USAGE = f"""(
    SELECT session_key, owner_id, day, purpose, model, residual, failed,
        {", ".join(f"sum({name})::bigint AS {name}" for name in FIGURES)}
    FROM (SELECT session_key, owner_id, day, purpose, model, residual, failed, {", ".join(FIGURES)}
            FROM call_sum WHERE session_key = %(session)s
        UNION ALL SELECT session_key, owner_id, day, purpose, model, residual, failed,
            {", ".join(FIGURES)}
            FROM imported_usage WHERE session_key = %(session)s) AS both_sums
    GROUP BY session_key, owner_id, day, purpose, model, residual, failed)"""  # noqa: S608 - ours

# As they were at the cut: what a later quarantine undoes is in the export.
_RULES = """(
    SELECT e.session_key, r.* FROM session_export e, jsonb_to_recordset(e.cut -> 'source_rules')
        AS r (source text, trust text, trust_before text, updated_at timestamptz)
    WHERE e.session_key = %(session)s AND e.export_id = %(export)s)"""
#: What is read from elsewhere than its table.
_TABLES = {"usage": _USAGE, "source_rule": _RULES}


def _columns(kind: RecordKind) -> str:
    sources = _SOURCES.get(kind.name, {})

    def column(name: str, of: str) -> str:
        source = sources.get(name, f"t.{name}")
        return f"({source})::text AS {name}" if of == "jsonb" else f"{source} AS {name}"

    return ", ".join(column(field.name, field.type) for field in kind.fields)


def _statement(kind: RecordKind, *, is_later: bool) -> str:
    table = _TABLES.get(kind.name, kind.table)
    conditions = ["t.session_key = %(session)s"]
    if kind.of_memory:
        conditions.append("t.memory_id = %(memory)s")
        # The row of a memory that has moved on since is read, and changed to that of the cut.
        if kind is not records.CURSOR and any(one.name == "revision" for one in kind.fields):
            conditions.append(_BY_REVISION)
    if kind.name in _WHERE:
        conditions.append(_WHERE[kind.name])
    # By bytes, so that the order does not depend on the database.
    keys = [_key(kind, name) for name in kind.keys]
    order = f"ORDER BY {', '.join(keys)}" if keys else ""
    after = ""
    if is_later:
        values = ", ".join(
            f"%(key{at})s::{kind.field(name).type}" for at, name in enumerate(kind.keys)
        )
        after = f"WHERE ({', '.join(keys)}) > ({values})"
    return f"""SELECT * FROM (SELECT {_columns(kind)} FROM {table} AS t
        WHERE {" AND ".join(conditions)}) AS t {after} {order} LIMIT {kind.page}"""  # noqa: S608


def _key(kind: RecordKind, name: str) -> str:
    return f'{name} COLLATE "C"' if kind.field(name).type == "text" else name


_FIRST = {name: _statement(kind, is_later=False) for name, kind in records.KINDS.items()}
_LATER = {
    name: _statement(kind, is_later=True) for name, kind in records.KINDS.items() if kind.keys
}


async def read(
    tx: Transaction,
    cut: ExportCut,
    kind: RecordKind,
    memory: str = "",
    *,
    after: Sequence[Any] = (),
    answer_id: UUID | None = None,
) -> Sequence[Mapping[str, Any]]:
    """Returns a page of the rows of a kind, after the row with the keys `after`."""
    values = {**cut.values(memory), "answer": answer_id}
    values |= {f"key{at}": one for at, one in enumerate(after)}
    query = (_LATER if after else _FIRST)[kind.name]
    rows = await tx.fetch(query, values, prepare=None)
    return [row._asdict() for row in rows]


def cursor_of(row: Mapping[str, Any], memory: MemoryCut) -> Mapping[str, Any]:
    """Returns the cursor of a memory as of the cut, from its row by now."""
    row = {
        **row,
        "reread_positions": memory.reread_positions,
        "seal_position": memory.seal_position,
    }
    if row["revision"] == memory.revision:
        # A step may fail for good without a revision.
        return {**row, "status": memory.status}
    status = "active" if memory.status == "stalled" else memory.status
    return {
        **row,
        "revision": memory.revision,
        "applied_position": memory.applied_position,
        "status": status,
    }


def open_letter_fits(memory: MemoryCut, row: Mapping[str, Any]) -> bool:
    """Returns whether a dead letter is that of a memory as of the cut."""
    return row["resolution"] is not None or memory.status == "stalled"


_EXPORTS = """
SELECT export_id, created_at, finished_at, head FROM session_export
WHERE session_key = %(session)s ORDER BY created_at, export_id
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredExport:
    """An export that was begun."""

    export_id: UUID
    created_at: datetime
    #: None: its end was not sent.
    finished_at: datetime | None
    #: Position of its last chunk.
    head: int


async def exports_of(tx: Transaction, session_key: UUID) -> Sequence[StoredExport]:
    """Returns the exports of a session, oldest first."""
    rows = await tx.fetch(_EXPORTS, {"session": session_key}, prepare=None)
    return [StoredExport(**row._asdict()) for row in rows]
