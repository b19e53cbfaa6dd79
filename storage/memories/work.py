"""Work that no order of the queue shows, and putting work off."""

from collections.abc import Sequence
from uuid import UUID

from psycopg import sql
from sqlalchemy import func, select, text, update

from service.domain.values.work_items import WorkItem, WorkKind
from storage.engine.clocks import interval
from storage.engine.database import Transaction
from storage.memories.job_results import WORK_TABLES
from storage.tables import removal, session


async def without_words(tx: Transaction, limit: int) -> Sequence[WorkItem]:
    """Up to `limit` sessions whose chunks are to have words, while vectors wait for their time.

    No order of the queue shows them. Needs `Database.sweeping`.
    """
    statement = (
        select(session.c.tenant_id, session.c.session_key, session.c.session_key.label("item_id"))
        .where(
            session.c.has_unindexed,
            # As the index has it.
            session.c.index_ready_at > text("'-infinity'"),
            session.c.index_ready_at > func.now(),
            session.c.indexed_position < session.c.head,
            session.c.words_ready_at <= func.now(),
        )
        .order_by(session.c.tenant_id, session.c.index_ready_at)
        .limit(limit)
    )
    # By the index of what is to be indexed, whatever statistics say.
    await tx.execute(
        "SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off;"
        " SET LOCAL enable_sort = off",
        prepare=None,
    )
    rows = await tx.fetch(statement)
    return [WorkItem(kind=WorkKind.INDEX, **row._asdict()) for row in rows]


async def unembedded(tx: Transaction, model: str, after: UUID, limit: int) -> Sequence[WorkItem]:
    """Up to `limit` sessions behind `after` that nobody indexes and that lack vectors of `model`.

    In the order of their keys. Needs `Database.sweeping`.
    """
    # Not by set_config, which Citus does not pass on to shards.
    named = sql.Literal(model).as_string(None)
    await tx.execute(f"SET LOCAL app.embedding_model = {named}", prepare=None)
    statement = (
        select(session.c.tenant_id, session.c.session_key, session.c.session_key.label("item_id"))
        # Which ones lack them is for the policy `session_unembedded` to say.
        .where(session.c.session_key > after, session.c.has_unindexed.is_(False))
        .order_by(session.c.session_key)
        .limit(limit)
    )
    rows = await tx.fetch(statement)
    return [WorkItem(kind=WorkKind.INDEX, **row._asdict()) for row in rows]


async def defer(tx: Transaction, item: WorkItem, seconds: float) -> None:
    """Leaves an item for so long, behind what is ready by then; no try is counted.

    With less than 0 it is ready at once, and behind what has been ready for longer than that.
    """
    later = func.now() + interval(seconds)
    if item.kind is WorkKind.INDEX:
        await tx.execute(
            update(session)
            .where(session.c.session_key == item.session_key)
            .values(index_ready_at=func.greatest(session.c.index_ready_at, later))
        )
        return
    if item.kind is WorkKind.REMOVAL:
        await tx.execute(
            update(removal)
            .where(removal.c.session_key == item.session_key, removal.c.item_id == item.item_id)
            .values(ready_at=func.greatest(removal.c.ready_at, later))
        )
        return
    table, identity, status = WORK_TABLES[item.kind]
    await tx.execute(
        update(table)
        .where(
            table.c.session_key == item.session_key,
            identity == item.item_id,
            table.c.status == status,
        )
        .values(ready_at=func.greatest(table.c.ready_at, later))
    )
