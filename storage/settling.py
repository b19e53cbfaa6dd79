"""What is asked for and then made by a worker: it is pending until it is settled, once.

Answers and schema drafts; their tables have `status`, `attempts` and `ready_at`. An answer that
is abandoned is not settled: it may go on, and what was made all the same is kept.
"""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import Column, Table, func, select, tuple_, update

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
    return (await tx.connection.execute(statement)).rowcount == 1


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


async def settled(tx: Transaction, items: Sequence[WorkItem]) -> set[WorkItem]:
    """Which of the items have ended, in one query for each kind."""
    found: set[WorkItem] = set()
    for kind, (table, identity) in SETTLED.items():
        wanted = {(item.session_key, item.item_id): item for item in items if item.kind is kind}
        if not wanted:
            continue
        statement = select(table.c.session_key, identity).where(
            tuple_(table.c.session_key, identity).in_(list(wanted)), table.c.status.not_in(OPEN)
        )
        rows = await tx.connection.execute(statement)
        found |= {wanted[session_key, item_id] for session_key, item_id in rows}
    return found
