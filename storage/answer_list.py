"""The answers of a session, newest first."""

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from sqlalchemy import select, tuple_

from storage.answers import StoredAnswer, from_row, select_answers
from storage.database import Transaction
from storage.tables import answer

#: Where an answer stands: when it was asked, and its id.
Place = tuple[datetime, UUID]


async def list_newest(
    tx: Transaction,
    session_key: UUID,
    *,
    memory_id: UUID | None,
    status: str | None,
    before: Place | None,
    limit: int,
) -> Sequence[StoredAnswer]:
    """Up to `limit` answers that were asked before `before`, newest first.

    Only those of a memory, and only with a status, where these are given.
    """
    # Their places first, from an index: an answer's row is wide.
    places = select(answer.c.answer_id).where(answer.c.session_key == session_key)
    if memory_id is not None:
        places = places.where(answer.c.memory_id == memory_id)
    if status is not None:
        places = places.where(answer.c.status == status)
    if before is not None:
        places = places.where(tuple_(answer.c.created_at, answer.c.answer_id) < tuple_(*before))
    newest = (answer.c.created_at.desc(), answer.c.answer_id.desc())
    wanted = places.order_by(*newest).limit(limit)
    statement = (
        select_answers()
        .where(answer.c.session_key == session_key, answer.c.answer_id.in_(wanted))
        .order_by(*newest)
    )
    return [from_row(row) for row in await tx.connection.execute(statement)]
