"""Lists the work that is due now, of all tenants, claimed or not."""

from collections.abc import Sequence

from sqlalchemy import and_, func, or_, select

from service.domain.values.work_items import WorkItem, WorkKind
from storage.engine.database import Transaction
from storage.memories.job_results import JOB_TABLES
from storage.tables import memory, session


async def runnable(tx: Transaction, limit: int) -> Sequence[WorkItem]:
    """Returns up to `limit` memories, answers and schema drafts each. Needs `Database.sweeping`."""
    looks = {
        WorkKind.MEMORY: select(
            memory.c.tenant_id, memory.c.session_key, memory.c.memory_id.label("item_id")
        ).where(memory.c.has_work, memory.c.status == "active", memory.c.ready_at <= func.now())
    }
    for kind, (table, identity) in JOB_TABLES.items():
        looks[kind] = select(
            table.c.tenant_id, table.c.session_key, identity.label("item_id")
        ).where(table.c.status == "pending", table.c.ready_at <= func.now())
    return [
        WorkItem(kind=kind, **row._asdict())
        for kind, statement in looks.items()
        for row in await tx.fetch(statement.limit(limit))
    ]


async def unindexed(tx: Transaction, limit: int) -> Sequence[WorkItem]:
    """Returns up to `limit` sessions with words or vectors due. Needs `Database.sweeping`."""
    statement = select(
        session.c.tenant_id, session.c.session_key, session.c.session_key.label("item_id")
    ).where(
        session.c.has_unindexed,
        or_(
            session.c.index_ready_at <= func.now(),
            and_(
                session.c.indexed_position < session.c.head,
                session.c.words_ready_at <= func.now(),
            ),
        ),
    )
    rows = await tx.fetch(statement.limit(limit))
    return [WorkItem(kind=WorkKind.INDEX, **row._asdict()) for row in rows]
