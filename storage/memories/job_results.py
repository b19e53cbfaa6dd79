"""Stores the results of on-demand jobs: a job is pending until it ends, once.

Jobs are answers and schema drafts; their tables have `status`, `attempts` and `ready_at`. An
abandoned answer has not ended: it may continue, and a late result is kept.
"""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import Column, ColumnElement, Table, func, update

from service.domain.values.work_items import WorkItem, WorkKind
from storage.engine.clocks import interval
from storage.engine.database import Transaction
from storage.tables import answer, memory, schema_draft

#: The table of each kind, and the column of its ids.
JOB_TABLES: dict[WorkKind, tuple[Table, Column[Any]]] = {
    WorkKind.ANSWER: (answer, answer.c.answer_id),
    WorkKind.SCHEMA: (schema_draft, schema_draft.c.draft_id),
}

#: The table of each kind of work, the column of its ids, and the status of an open item.
WORK_TABLES: dict[WorkKind, tuple[Table, Column[Any], str]] = {
    WorkKind.MEMORY: (memory, memory.c.memory_id, "active"),
    **{kind: (table, identity, "pending") for kind, (table, identity) in JOB_TABLES.items()},
}


def open_item(item: WorkItem) -> tuple[Table, tuple[ColumnElement[bool], ...]]:
    """Returns the table of an item, and the conditions of its row while it is open."""
    table, identity, status = WORK_TABLES[item.kind]
    of_item = (table.c.session_key == item.session_key, identity == item.item_id)
    return table, (*of_item, table.c.status == status)


#: The status of jobs that have not ended.
OPEN = ("pending", "abandoned")


async def store(
    tx: Transaction, kind: WorkKind, session_key: UUID, item_id: UUID, **values: Any
) -> bool:
    """Stores how a job ended; returns False when it had ended already."""
    table, identity = JOB_TABLES[kind]
    statement = (
        update(table)
        .where(table.c.session_key == session_key, identity == item_id, table.c.status.in_(OPEN))
        .values(**values, waiting_model=None, waiting_cause=None)
    )
    if await tx.execute(statement) != 1:
        return False
    tx.changed.add(item_id)
    return True


async def fail(tx: Transaction, item: WorkItem, failure: str, *, over_budget: bool = False) -> bool:
    """Stores that a job failed; returns False when it had ended already.

    `over_budget`: because a budget does not allow a call.
    """
    values: dict[str, Any] = {"status": "failed", "failure": failure}
    if item.kind is WorkKind.ANSWER:
        values["over_budget"] = over_budget
    return await store(tx, item.kind, item.session_key, item.item_id, **values)


async def back_off(tx: Transaction, item: WorkItem, seconds: float) -> None:
    """Counts a failed try; the next one begins after `seconds`."""
    table, identity = JOB_TABLES[item.kind]
    await tx.execute(
        update(table)
        .where(table.c.session_key == item.session_key, identity == item.item_id)
        .values(
            attempts=table.c.attempts + 1,
            ready_at=func.now() + interval(seconds),
        )
    )


# Each by its key, whatever number the planner expects.
_ENDED = """
SELECT w.number
FROM unnest(%(sessions)s::uuid[], %(ids)s::uuid[]) WITH ORDINALITY AS w (session_key, id, number)
CROSS JOIN LATERAL (
    SELECT status FROM {table} WHERE session_key = w.session_key AND {identity} = w.id OFFSET 0
) AS t
WHERE t.status <> ALL(%(open)s)
"""


_MISSING = """
SELECT w.number
FROM unnest(%(sessions)s::uuid[], %(ids)s::uuid[]) WITH ORDINALITY AS w (session_key, id, number)
LEFT JOIN LATERAL (
    SELECT true AS there FROM {table} t JOIN session s ON s.session_key = t.session_key
    WHERE t.session_key = w.session_key AND t.{identity} = w.id OFFSET 0
) AS t ON true
WHERE t.there IS NULL
"""


async def ended(tx: Transaction, items: Sequence[WorkItem]) -> set[WorkItem]:
    """Returns which of the items have ended, in one query for each kind."""
    return await _found(tx, items, _ENDED)


async def missing(tx: Transaction, items: Sequence[WorkItem]) -> set[WorkItem]:
    """Returns which of the items were deleted, alone or with their session."""
    return await _found(tx, items, _MISSING)


async def _found(tx: Transaction, items: Sequence[WorkItem], which: str) -> set[WorkItem]:
    found: set[WorkItem] = set()
    for kind, (table, identity) in JOB_TABLES.items():
        wanted = [item for item in items if item.kind is kind]
        if not wanted:
            continue
        values = {
            "sessions": [item.session_key for item in wanted],
            "ids": [item.item_id for item in wanted],
            "open": list(OPEN),
        }
        query = which.format(table=table.name, identity=identity.name)
        # The plan is not kept: one for few rows would be used for many.
        rows = await tx.fetch(query, values, prepare=False)
        found |= {wanted[number - 1] for (number,) in rows}
    return found
