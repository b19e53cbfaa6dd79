"""Stores long operations, reads them with their targets, and ends each once."""

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any
from uuid import UUID

from psycopg.types.json import Jsonb

from service.domain.memories.long_operations import (
    DraftFacts,
    Operation,
    OperationError,
    OperationId,
    OperationKind,
    OperationState,
    OperationTarget,
    RedactionFacts,
)
from service.domain.memories.specs import SPECS
from storage.engine.database import Transaction

#: The place of an operation in a list: when it was requested, and its key.
PageCursor = tuple[datetime, UUID]

_ADD = """
INSERT INTO operation (session_key, operation_id, tenant_id, kind, memory_id, memory_name, goal)
VALUES (%(session)s, %(operation)s, %(tenant)s, %(kind)s, %(memory)s, %(name)s, %(goal)s)
"""

# A memory that was created after the operation only has the name of its target.
_SELECT = """
SELECT o.session_key, o.operation_id, s.name, o.kind, o.memory_id, o.memory_name, o.goal,
    o.created_at, o.state, o.error, o.ended_at,
    m.kind, m.revision, m.applied_position, NOT m.has_work OR m.resting, m.consolidate_position,
    m.status = 'sealed',
    CASE WHEN m.ready_at > now() THEN coalesce(m.held_reason, m.waiting_cause) END,
    l.from_position + 1, l.cause,
    d.status, d.failure, d.attempts > 0 OR d.waiting_cause IS NOT NULL,
    CASE WHEN d.ready_at > now() THEN d.waiting_cause END,
    x.chunks, x.ended_at IS NOT NULL
FROM operation o
JOIN session s ON s.session_key = o.session_key
LEFT JOIN memory m ON m.session_key = o.session_key AND m.memory_id = o.memory_id
    AND m.created_at <= o.created_at
LEFT JOIN dead_letter l ON l.session_key = m.session_key AND l.memory_id = m.memory_id
    AND l.resolution IS NULL
LEFT JOIN schema_draft d ON d.session_key = o.session_key AND d.draft_id = o.operation_id
LEFT JOIN redaction x ON x.session_key = o.session_key AND x.redaction_id = o.operation_id
"""
_GET = f"{_SELECT} WHERE o.session_key = %(session)s AND o.operation_id = %(operation)s"
_NEWEST = f"""
{_SELECT} WHERE o.session_key = %(session)s AND o.memory_id = %(memory)s AND o.kind = %(kind)s
ORDER BY o.state IS NOT NULL, o.created_at DESC LIMIT 1
"""

_END = """
UPDATE operation SET state = t.state, error = t.error, ended_at = clock_timestamp()
FROM unnest(%(sessions)s::uuid[], %(operations)s::uuid[], %(states)s::text[], %(errors)s::jsonb[])
    AS t (session_key, operation_id, state, error)
WHERE operation.session_key = t.session_key AND operation.operation_id = t.operation_id
    AND operation.state IS NULL
"""
_MOVE_GOAL = """
UPDATE operation SET goal = greatest(goal, %(goal)s)
WHERE session_key = %(session)s AND operation_id = %(operation)s
"""


async def add(
    tx: Transaction,
    id: OperationId,
    kind: OperationKind,
    *,
    memory_id: UUID | None = None,
    memory: str = "",
    goal: int = 0,
) -> None:
    """Stores an operation in the transaction that requests its work."""
    values = {
        "session": id.session_key,
        "operation": id.operation_id,
        "tenant": tx.tenant_id,
        "kind": kind.value,
        "memory": memory_id,
        "name": memory,
        "goal": goal,
    }
    await tx.execute(_ADD, values, prepare=None)


async def get(tx: Transaction, id: OperationId) -> Operation | None:
    """Reads an operation; None when there is none."""
    values = {"session": id.session_key, "operation": id.operation_id}
    rows = await tx.fetch(_GET, values)
    return _operation(rows[0]) if rows else None


async def newest(
    tx: Transaction, session_key: UUID, memory_id: UUID, kind: OperationKind
) -> Operation | None:
    """Returns a memory's operation of a kind: the one whose end was not reported, else the newest.

    None when there is none. The caller has the memory from `revisions.lock`.
    """
    values = {"session": session_key, "memory": memory_id, "kind": kind.value}
    rows = await tx.fetch(_NEWEST, values)
    return _operation(rows[0]) if rows else None


async def list_newest(
    tx: Transaction,
    *,
    session_key: UUID | None,
    memory_id: UUID | None,
    kind: OperationKind | None,
    before: PageCursor | None,
    limit: int,
) -> Sequence[Operation]:
    """Returns up to `limit` operations that were requested before a cursor, newest first."""
    wanted = ["o.tenant_id = %(tenant)s"]
    if session_key is not None:
        wanted.append("o.session_key = %(session)s")
    if memory_id is not None:
        wanted.append("o.memory_id = %(memory)s")
    if kind is not None:
        wanted.append("o.kind = %(kind)s")
    if before is not None:
        wanted.append("(o.created_at, o.operation_id) < (%(at)s, %(id)s)")
    created_at, operation_id = before or (None, None)
    values = {
        "tenant": tx.tenant_id,
        "session": session_key,
        "memory": memory_id,
        "kind": None if kind is None else kind.value,
        "at": created_at,
        "id": operation_id,
        "limit": limit,
    }
    order = "ORDER BY o.created_at DESC, o.operation_id DESC LIMIT %(limit)s"
    query = f"{_SELECT} WHERE {' AND '.join(wanted)} {order}"
    rows = await tx.fetch(query, values, prepare=False)
    return [_operation(row) for row in rows]


async def end(
    tx: Transaction, ended: Sequence[tuple[OperationId, OperationState, OperationError | None]]
) -> int:
    """Stores how operations ended, unless that is stored already; returns how many it stored."""
    values = {
        "sessions": [id.session_key for id, _, _ in ended],
        "operations": [id.operation_id for id, _, _ in ended],
        "states": [state.value for _, state, _ in ended],
        "errors": [None if error is None else Jsonb(asdict(error)) for _, _, error in ended],
    }
    return await tx.execute(_END, values, prepare=None)


async def move_goal(tx: Transaction, id: OperationId, goal: int) -> None:
    """Requires that everything up to `goal` is read as well."""
    values = {"session": id.session_key, "operation": id.operation_id, "goal": goal}
    await tx.execute(_MOVE_GOAL, values, prepare=None)


def _operation(row: Sequence[Any]) -> Operation:
    session_key, operation_id, session, kind, memory_id, memory, goal = row[:7]
    created_at, ended, error, ended_at = row[7:11]
    facts: OperationTarget | DraftFacts | RedactionFacts | None = None
    if row[11] is not None:
        memory_kind, revision, applied, is_idle, consolidate, is_sealed = row[11:17]
        blocked, position, cause = row[17:20]
        facts = OperationTarget(
            has_whole_log=SPECS[memory_kind].has_whole_log,
            revision=revision,
            applied_position=applied,
            is_idle=is_idle,
            consolidate_position=consolidate,
            is_sealed=is_sealed,
            blocked=blocked,
            stall=None if position is None else (position, cause),
        )
    elif row[20] is not None:
        status, failure, has_begun, blocked = row[20:24]
        facts = DraftFacts(status=status, failure=failure, has_begun=has_begun, blocked=blocked)
    elif row[24] is not None:
        facts = RedactionFacts(chunks=row[24], is_done=row[25])
    return Operation(
        id=OperationId(session_key=session_key, operation_id=operation_id),
        session=session,
        kind=OperationKind(kind),
        memory_id=memory_id,
        memory=memory,
        goal=goal,
        created_at=created_at,
        ended=None if ended is None else OperationState(ended),
        error=None if error is None else OperationError(**error),
        ended_at=ended_at,
        facts=facts,
    )
