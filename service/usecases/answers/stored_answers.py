"""Lists, cancels and rates stored answers."""

from uuid import UUID

from service.domain.values.errors import FailedPrecondition
from service.domain.values.reasons import Reason
from service.domain.values.tenancy import session_key
from service.domain.values.work_items import WorkKind
from service.usecases.answers.ask import AskDone, answer_not_found, occasion, stored_answer
from service.usecases.log.idempotency import store_result
from service.usecases.log.lookup import find_memory, session_not_found
from storage.answers import answers, listing, ratings
from storage.answers.listing import PageCursor
from storage.calls import calls
from storage.engine.database import Database, Transaction
from storage.engine.listing import ListPage
from storage.log import sessions
from storage.memories import job_results


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
    """Returns up to `limit` answers, newest first, after the one at `before`. Raises NotFound.

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


async def cancel(database: Database, tenant_id: UUID, session: str, answer_id: UUID) -> AskDone:
    """Cancels an answer, unless it has ended; returns it. Raises NotFound."""
    key = session_key(tenant_id, session)
    async with database.transaction(tenant_id, name="answer") as tx:
        await job_results.store(tx, WorkKind.ANSWER, key, answer_id, status="cancelled", failure="")
        return await store_result(tx, await stored_answer(tx, session, answer_id))


async def rate(
    database: Database,
    tenant_id: UUID,
    session: str,
    answer_id: UUID,
    *,
    good: bool,
    comment: str,
    expected: str,
) -> AskDone:
    """Stores a client's rating of an answer; the last one counts. Returns the answer with it.

    Raises NotFound, FailedPrecondition.
    """
    key = session_key(tenant_id, session)
    async with database.transaction(tenant_id, name="answer") as tx:
        status = await answers.status(tx, key, answer_id)
        if status is None:
            raise await answer_not_found(tx, session, answer_id)
        if status != "complete":
            raise FailedPrecondition(
                Reason.ANSWER_NOT_DONE,
                f"answer {answer_id} is {status}; only those that are done can be rated",
                {"answer": answer_id, "state": status},
            )
        await ratings.rate(tx, key, answer_id, good=good, comment=comment, expected=expected)
        return await store_result(tx, await stored_answer(tx, session, answer_id))


async def _memory_id(tx: Transaction, session: str, key: UUID, memory: str) -> UUID | None:
    if memory:
        return (await find_memory(tx, session, memory)).memory_id
    if await sessions.get(tx, key) is None:
        raise session_not_found(session)
    return None
