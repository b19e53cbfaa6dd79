"""Questions of the session `s` as they are stored for a worker, and what became of them."""

from typing import Any
from uuid import UUID, uuid4

from service.domain.answers.trajectory import Event
from service.domain.values.tenancy import DEFAULT_TENANT, session_key
from service.domain.values.work_items import WorkItem, WorkKind
from storage.answers import answers, trajectories
from storage.answers.answers import StoredAnswer
from storage.engine.database import Database

KEY = session_key(DEFAULT_TENANT, "s")


def item_of(answer_id: UUID) -> WorkItem:
    """Returns an answer, as workers receive it."""
    return WorkItem(
        kind=WorkKind.ANSWER,
        tenant_id=DEFAULT_TENANT,
        session_key=KEY,
        item_id=answer_id,
    )


async def store_question(
    database: Database,
    memory_id: UUID | None,
    query: str,
    *,
    revision: int,
    applied_position: int,
    **more: Any,
) -> WorkItem:
    """Returns a question to a memory, or to the log; `more` as `answers.create` takes it."""
    item = item_of(uuid4())
    async with database.transaction(DEFAULT_TENANT) as tx:
        await answers.create(
            tx,
            session_key=KEY,
            answer_id=item.item_id,
            memory_id=memory_id,
            query=query,
            revision=revision,
            applied_position=applied_position,
            **more,
        )
    return item


async def read_answer(database: Database, item: WorkItem) -> StoredAnswer:
    """Returns the answer as it is now."""
    stored, _ = await read_told(database, item)
    return stored


async def read_told(database: Database, item: WorkItem) -> tuple[StoredAnswer, list[Event]]:
    """Returns the answer as it is now, and its streamed events."""
    async with database.transaction(DEFAULT_TENANT) as tx:
        stored = await answers.get(tx, KEY, item.item_id)
        events = await trajectories.list_events(tx, (KEY, item.item_id), 0)
    assert stored is not None
    return stored, list(events)
