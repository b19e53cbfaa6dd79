"""Rating: somebody says whether an answer was good."""

from uuid import UUID

from service.domain.values.errors import FailedPrecondition
from service.domain.values.reasons import Reason
from service.domain.values.tenancy import session_key
from service.usecases.answers.ask import AskDone, answer_not_found, stored_answer
from service.usecases.log.idempotency import store_result
from storage.answers import answers, ratings
from storage.engine.database import Database


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
    """Stores the rating; the last one counts. Returns the answer with it.

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
