"""Listing the answers of a session, with what they cost."""

from uuid import UUID

from service.domain.values.tenancy import session_key
from service.usecases.answers.ask import AskDone, occasion
from service.usecases.log.lookup import find_memory, session_not_found
from storage.answers import listing
from storage.answers.listing import PageCursor
from storage.calls import calls
from storage.engine.database import Database, Transaction
from storage.engine.listing import ListPage
from storage.log import sessions


async def list_answers(
    database: Database,
    tenant_id: UUID,
    session: str,
    *,
    memory: str,
    status: str | None,
    is_running: bool | None,
    before: PageCursor | None,
    limit: int,
    max_bytes: int,
) -> ListPage[AskDone]:
    """Up to `limit` answers, newest first, behind the one at `before`. Raises NotFound.

    Only those of a memory, only with a status, and only those that are running, or not, where
    these are given; about `max_bytes` of them at the most.
    """
    key = session_key(tenant_id, session)
    async with database.transaction(tenant_id, name="answer") as tx:
        memory_id = await _memory_id(tx, session, key, memory)
        listed = await listing.list_newest(
            tx,
            key,
            memory_id=memory_id,
            status=status,
            is_running=is_running,
            before=before,
            limit=limit,
            max_bytes=max_bytes,
        )
        found = listed.items
        asked = {one.asked_memory for one in found}
        chosen = {one.chosen.memory_id for one in found if one.chosen is not None}
        usage = await calls.usage_of(
            tx,
            key,
            [occasion(one.answer_id) for one in found],
            [one for one in asked | chosen if one is not None],
        )
    answered = [
        AskDone(answer=one, usage=tuple(usage.get(occasion(one.answer_id), ()))) for one in found
    ]
    return ListPage(items=answered, more=listed.more)


async def _memory_id(tx: Transaction, session: str, key: UUID, memory: str) -> UUID | None:
    if memory:
        return (await find_memory(tx, session, memory)).memory_id
    if await sessions.get(tx, key) is None:
        raise session_not_found(session)
    return None
