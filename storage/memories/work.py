"""Finds sessions to index that no work class shows, and defers work."""

from collections.abc import Sequence
from uuid import UUID

from psycopg import sql
from sqlalchemy import ColumnElement, Table, and_, func, select, text, update

from service.domain.values.work_items import WorkItem, WorkKind
from storage.engine.clocks import interval
from storage.engine.database import Transaction
from storage.memories.job_results import open_item
from storage.tables import memory, memory_entry, removal, session


async def without_words(tx: Transaction, limit: int) -> Sequence[WorkItem]:
    """Returns up to `limit` sessions that lack words, and whose vectors are deferred.

    No work class shows them. Needs `Database.sweeping`.
    """
    statement = (
        select(session.c.tenant_id, session.c.session_key, session.c.session_key.label("item_id"))
        .where(
            session.c.has_unindexed,
            # The condition of the index.
            session.c.index_ready_at > text("'-infinity'"),
            session.c.index_ready_at > func.now(),
            session.c.indexed_position < session.c.head,
            session.c.words_ready_at <= func.now(),
        )
        .order_by(session.c.tenant_id, session.c.index_ready_at)
        .limit(limit)
    )
    # By the index of sessions to index, whatever the statistics are.
    await tx.execute(
        "SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off;"
        " SET LOCAL enable_sort = off",
        prepare=None,
    )
    rows = await tx.fetch(statement)
    return [WorkItem(kind=WorkKind.INDEX, **row._asdict()) for row in rows]


async def unembedded(tx: Transaction, model: str, after: UUID, limit: int) -> Sequence[WorkItem]:
    """Returns up to `limit` sessions after `after` that lack vectors of `model`, by key.

    Without those that are being indexed. Needs `Database.sweeping`.
    """
    # Not by set_config, which Citus does not propagate to shards.
    named = sql.Literal(model).as_string(None)
    await tx.execute(f"SET LOCAL app.embedding_model = {named}", prepare=None)
    statement = (
        select(session.c.tenant_id, session.c.session_key, session.c.session_key.label("item_id"))
        # The policy `session_unembedded` shows only those that lack them.
        .where(session.c.session_key > after, session.c.has_unindexed.is_(False))
        .order_by(session.c.session_key)
        .limit(limit)
    )
    rows = await tx.fetch(statement)
    return [WorkItem(kind=WorkKind.INDEX, **row._asdict()) for row in rows]


async def without_entries(tx: Transaction, after: UUID, limit: int) -> Sequence[WorkItem]:
    """Returns up to `limit` sessions after `after` with a memory that lacks entries, by key.

    Needs `Database.sweeping`.
    """
    # The policy `memory_unentered` shows only those, and only then.
    await tx.execute("SET LOCAL app.unentered = 'on'", prepare=None)
    return await _sessions_of(
        tx, memory, memory.c.entry_revision != memory.c.revision, after, limit
    )


async def unembedded_entries(tx: Transaction, after: UUID, limit: int) -> Sequence[WorkItem]:
    """Returns up to `limit` sessions after `after` with entries that have no vector, by key.

    Needs `Database.sweeping`.
    """
    # The policy `session_unindexed` shows those that are noted already.
    noted = select(session.c.session_key).where(
        session.c.session_key == memory_entry.c.session_key, session.c.has_unindexed
    )
    which = and_(memory_entry.c.model.is_(None), ~noted.exists())
    return await _sessions_of(tx, memory_entry, which, after, limit)


async def _sessions_of(
    tx: Transaction, table: Table, which: ColumnElement[bool], after: UUID, limit: int
) -> Sequence[WorkItem]:
    statement = (
        select(table.c.tenant_id, table.c.session_key, table.c.session_key.label("item_id"))
        .where(which, table.c.session_key > after)
        .distinct()
        .order_by(table.c.session_key)
        .limit(limit)
    )
    return [WorkItem(kind=WorkKind.INDEX, **row._asdict()) for row in await tx.fetch(statement)]


async def defer(tx: Transaction, item: WorkItem, seconds: float) -> None:
    """Makes an item ready after `seconds`, without counting a try.

    With less than 0 it is ready now, after the items that have been ready for longer than that.
    """
    which: tuple[ColumnElement[bool], ...]
    if item.kind is WorkKind.INDEX:
        table, which = session, (session.c.session_key == item.session_key,)
    elif item.kind is WorkKind.REMOVAL:
        of_session = removal.c.session_key == item.session_key
        table, which = removal, (of_session, removal.c.item_id == item.item_id)
    else:
        table, which = open_item(item)
    ready_at = table.c.index_ready_at if table is session else table.c.ready_at
    later = func.greatest(ready_at, func.now() + interval(seconds))
    await tx.execute(update(table).where(*which).values({ready_at: later}))
