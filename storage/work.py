"""What there is to do: the reconciler's look over all tenants."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from psycopg import sql
from sqlalchemy import Column, Table, and_, func, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from service.domain.work import WorkItem, WorkKind
from storage.database import Transaction
from storage.settling import SETTLED
from storage.tables import memory, session


async def runnable(connection: AsyncConnection, limit: int) -> Sequence[WorkItem]:
    """Up to `limit` memories, answers and schema drafts each that could be worked on now.

    Needs `Database.sweeping`.
    """
    memories = (
        select(memory.c.tenant_id, memory.c.session_key, memory.c.memory_id.label("item_id"))
        .where(memory.c.has_work, memory.c.status == "active", memory.c.ready_at <= func.now())
        .order_by(memory.c.ready_at)
        .limit(limit)
    )
    looks = {WorkKind.MEMORY: memories}
    for kind, (table, identity) in SETTLED.items():
        looks[kind] = (
            select(table.c.tenant_id, table.c.session_key, identity.label("item_id"))
            .where(table.c.status == "pending", table.c.ready_at <= func.now())
            .order_by(table.c.ready_at)
            .limit(limit)
        )
    items: list[WorkItem] = []
    for kind, statement in looks.items():
        rows = await connection.execute(statement)
        items += [WorkItem(kind=kind, **row._mapping) for row in rows]
    return items


async def unindexed(connection: AsyncConnection, limit: int) -> Sequence[WorkItem]:
    """Up to `limit` sessions whose chunks are to be indexed, those first that wait longest.

    While vectors wait for their time, words do not. Needs `Database.sweeping`.
    """
    statement = (
        select(session.c.tenant_id, session.c.session_key, session.c.session_key.label("item_id"))
        .where(
            session.c.has_unindexed,
            or_(
                session.c.index_ready_at <= func.now(),
                and_(
                    session.c.indexed_position < session.c.head,
                    session.c.words_ready_at <= func.now(),
                ),
            ),
        )
        .order_by(session.c.index_ready_at)
        .limit(limit)
    )
    rows = await connection.execute(statement)
    return [WorkItem(kind=WorkKind.INDEX, **row._mapping) for row in rows]


async def unembedded(
    connection: AsyncConnection, model: str, after: UUID, limit: int
) -> Sequence[WorkItem]:
    """Up to `limit` sessions behind `after` that nobody indexes and that lack vectors of `model`.

    In the order of their keys. Needs `Database.sweeping`.
    """
    # Not by set_config, which Citus does not pass on to shards.
    named = sql.Literal(model).as_string(None)
    await connection.exec_driver_sql(f"SET LOCAL app.embedding_model = {named}")
    statement = (
        select(session.c.tenant_id, session.c.session_key, session.c.session_key.label("item_id"))
        # Which ones lack them is for the policy `session_unembedded` to say.
        .where(session.c.session_key > after, session.c.has_unindexed.is_(False))
        .order_by(session.c.session_key)
        .limit(limit)
    )
    rows = await connection.execute(statement)
    return [WorkItem(kind=WorkKind.INDEX, **row._mapping) for row in rows]


async def put_off(tx: Transaction, item: WorkItem, seconds: float) -> None:
    """Leaves a memory, an answer or a schema draft for so long; no try is counted."""
    table: Table
    identity: Column[Any]
    if item.kind is WorkKind.MEMORY:
        table, identity, status = memory, memory.c.memory_id, "active"
    else:
        (table, identity), status = SETTLED[item.kind], "pending"
    later = func.now() + func.make_interval(0, 0, 0, 0, 0, 0, seconds)
    await tx.connection.execute(
        update(table)
        .where(
            table.c.session_key == item.session_key,
            identity == item.item_id,
            table.c.status == status,
        )
        .values(ready_at=func.greatest(table.c.ready_at, later))
    )
