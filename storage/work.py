"""Work that no order of the queue shows, putting work off, and how far memories are."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from psycopg import sql
from sqlalchemy import Column, Table, and_, func, select, tuple_, update
from sqlalchemy.ext.asyncio import AsyncConnection

from service.domain.work import WorkItem, WorkKind
from storage.database import Transaction
from storage.memories import held_reason, rests, waiting_cause
from storage.settling import SETTLED
from storage.tables import dead_letter, memory, session


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """How far a memory is."""

    revision: int
    applied_position: int
    head: int
    #: Why it stalled; None while it is active.
    stall_cause: str | None
    #: First position it is stuck at; 0 while it is active.
    stall_position: int
    #: Why a budget holds it; None when it goes on.
    held_reason: str | None
    #: A tree is closed behind this position; None when nobody asked for that.
    seal_position: int | None = None
    #: There is nothing to do with what is in the log.
    rests: bool = False
    #: Why its model gives no reply for now; None when it is not put off by that.
    waiting_cause: str | None = None


async def without_words(connection: AsyncConnection, limit: int) -> Sequence[WorkItem]:
    """Up to `limit` sessions whose chunks are to have words, while vectors wait for their time.

    No order of the queue shows them. Needs `Database.sweeping`.
    """
    statement = (
        select(session.c.tenant_id, session.c.session_key, session.c.session_key.label("item_id"))
        .where(
            session.c.has_unindexed,
            session.c.index_ready_at > func.now(),
            session.c.indexed_position < session.c.head,
            session.c.words_ready_at <= func.now(),
        )
        .order_by(session.c.tenant_id, session.c.index_ready_at)
        .limit(limit)
    )
    # By the index of what is to be indexed, whatever statistics say.
    await connection.exec_driver_sql(
        "SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off;"
        " SET LOCAL enable_sort = off"
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
    """Leaves an item for so long, behind what is ready by then; no try is counted."""
    later = func.now() + func.make_interval(0, 0, 0, 0, 0, 0, seconds)
    if item.kind is WorkKind.INDEX:
        await tx.connection.execute(
            update(session)
            .where(session.c.session_key == item.session_key)
            .values(index_ready_at=func.greatest(session.c.index_ready_at, later))
        )
        return
    table: Table
    identity: Column[Any]
    if item.kind is WorkKind.MEMORY:
        table, identity, status = memory, memory.c.memory_id, "active"
    else:
        (table, identity), status = SETTLED[item.kind], "pending"
    await tx.connection.execute(
        update(table)
        .where(
            table.c.session_key == item.session_key,
            identity == item.item_id,
            table.c.status == status,
        )
        .values(ready_at=func.greatest(table.c.ready_at, later))
    )


async def read_progress(
    tx: Transaction, wanted: Sequence[tuple[UUID, UUID]]
) -> dict[tuple[UUID, UUID], Progress]:
    """How far each of the memories (session_key, memory_id) is, in one query."""
    statement = (
        select(
            memory.c.session_key,
            memory.c.memory_id,
            memory.c.revision,
            memory.c.applied_position,
            session.c.head,
            dead_letter.c.cause,
            dead_letter.c.from_position,
            held_reason(),
            memory.c.seal_position,
            rests(),
            waiting_cause(),
        )
        .join(session, session.c.session_key == memory.c.session_key)
        .outerjoin(
            dead_letter,
            and_(
                dead_letter.c.session_key == memory.c.session_key,
                dead_letter.c.memory_id == memory.c.memory_id,
                dead_letter.c.resolution.is_(None),
            ),
        )
        .where(tuple_(memory.c.session_key, memory.c.memory_id).in_(wanted))
    )
    return {
        (row.session_key, row.memory_id): Progress(
            revision=row.revision,
            applied_position=row.applied_position,
            head=row.head,
            stall_cause=row.cause,
            stall_position=0 if row.cause is None else row.from_position + 1,
            held_reason=row.held_reason,
            seal_position=row.seal_position,
            rests=row.rests,
            waiting_cause=row.waiting_cause,
        )
        for row in await tx.connection.execute(statement)
    }
