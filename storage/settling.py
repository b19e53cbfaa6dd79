"""What is asked for and then made by a worker: it is pending until it is settled, once.

Answers and schema drafts; their tables have `status`, `attempts` and `ready_at`. An answer that
is abandoned is not settled: it may go on, and what was made all the same is kept.
"""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import Column, Table, func, update

from service.domain.work import WorkItem, WorkKind
from storage.database import Transaction
from storage.tables import answer, schema_draft

#: The table of each kind, and the column of its ids.
SETTLED: dict[WorkKind, tuple[Table, Column[Any]]] = {
    WorkKind.ANSWER: (answer, answer.c.answer_id),
    WorkKind.SCHEMA: (schema_draft, schema_draft.c.draft_id),
}

#: What has not ended.
OPEN = ("pending", "abandoned")


async def settle(
    tx: Transaction, kind: WorkKind, session_key: UUID, item_id: UUID, **values: Any
) -> bool:
    """Stores how it ended; False when it had ended already."""
    table, identity = SETTLED[kind]
    statement = (
        update(table)
        .where(table.c.session_key == session_key, identity == item_id, table.c.status.in_(OPEN))
        .values(**values, waiting_model=None, waiting_cause=None)
    )
    if (await tx.connection.execute(statement)).rowcount != 1:
        return False
    tx.changed.add(item_id)
    return True


async def fail(tx: Transaction, item: WorkItem, failure: str) -> bool:
    """Stores that it cannot be made; False when it is settled already."""
    return await settle(
        tx, item.kind, item.session_key, item.item_id, status="failed", failure=failure
    )


async def back_off(tx: Transaction, item: WorkItem, seconds: float) -> None:
    """Counts a failed try; there is no other before `seconds` have passed."""
    table, identity = SETTLED[item.kind]
    await tx.connection.execute(
        update(table)
        .where(table.c.session_key == item.session_key, identity == item.item_id)
        .values(
            attempts=table.c.attempts + 1,
            ready_at=func.now() + func.make_interval(0, 0, 0, 0, 0, 0, seconds),
        )
    )


# Each by its key, whatever the planner thinks of their number.
_SETTLED = """
SELECT w.number
FROM unnest(%(sessions)s::uuid[], %(ids)s::uuid[]) WITH ORDINALITY AS w (session_key, id, number)
CROSS JOIN LATERAL (
    SELECT status FROM {table} WHERE session_key = w.session_key AND {identity} = w.id OFFSET 0
) AS t
WHERE t.status <> ALL(%(open)s)
"""


async def settled(tx: Transaction, items: Sequence[WorkItem]) -> set[WorkItem]:
    """Which of the items have ended, in one query for each kind."""
    found: set[WorkItem] = set()
    for kind, (table, identity) in SETTLED.items():
        wanted = [item for item in items if item.kind is kind]
        if not wanted:
            continue
        values = {
            "sessions": [item.session_key for item in wanted],
            "ids": [item.item_id for item in wanted],
            "open": list(OPEN),
        }
        query = _SETTLED.format(table=table.name, identity=identity.name)
        # The plan is not kept: one that was made for few rows would be used for many.
        rows = await (await tx.driver.execute(query, values, prepare=False)).fetchall()
        found |= {wanted[number - 1] for (number,) in rows}
    return found
