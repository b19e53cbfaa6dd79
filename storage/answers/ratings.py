"""Stores ratings of answers."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import func
from sqlalchemy.dialects.postgresql import insert

from storage.engine.database import Transaction
from storage.tables import answer_rating

#: As the table has them.
GOOD = 1
BAD = -1


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredRating:
    """A rating's row."""

    good: bool
    #: Empty without one.
    comment: str
    #: The right answer; empty when it is not given.
    expected: str
    rated_at: datetime


async def rate(
    tx: Transaction,
    session_key: UUID,
    answer_id: UUID,
    *,
    good: bool,
    comment: str,
    expected: str,
) -> StoredRating:
    """Stores the rating of an answer, in place of an earlier one."""
    said: dict[str, Any] = {
        "rating": GOOD if good else BAD,
        "comment": comment,
        "expected": expected,
    }
    row = insert(answer_rating).values(
        session_key=session_key,
        answer_id=answer_id,
        tenant_id=tx.tenant_id,
        rated_at=func.now(),
        **said,
    )
    statement = row.on_conflict_do_update(
        index_elements=["session_key", "answer_id"],
        set_={name: row.excluded[name] for name in (*said, "rated_at")},
    ).returning(answer_rating.c.rated_at)
    rated_at = (await tx.fetch(statement))[0][0]
    return StoredRating(good=good, comment=comment, expected=expected, rated_at=rated_at)
