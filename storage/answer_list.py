"""The answers of a session, newest first."""

from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Column, Text, func, literal, select, tuple_

from storage.answers import StoredAnswer, from_row, select_answers
from storage.database import Transaction
from storage.listing import Listed, list_rows
from storage.tables import answer, memory

#: Where an answer stands: when it was asked, and its id.
Place = tuple[datetime, UUID]


def _size(column: Column[Any]) -> Any:
    """Returns the SQL of a value's size in bytes; of JSON as it is stored, which may be packed."""
    is_text = isinstance(column.type, Text)
    return func.octet_length(column) if is_text else func.pg_column_size(column)


#: What may be long in the row of an answer, its memory's spec among it.
_LONG = (
    answer.c.query,
    answer.c.text,
    answer.c.failure,
    answer.c.citations,
    answer.c.response_schema,
    answer.c.value,
    answer.c.chosen,
    memory.c.spec,
    memory.c.schema_source,
)
_STORED_BYTES = sum((func.coalesce(_size(one), 0) for one in _LONG), literal(0))


async def list_newest(
    tx: Transaction,
    session_key: UUID,
    *,
    memory_id: UUID | None,
    status: str | None,
    before: Place | None,
    limit: int,
    max_bytes: int,
) -> Listed[StoredAnswer]:
    """Up to `limit` answers that were asked before `before`, newest first.

    Only those of a memory, and only with a status, where these are given. Ends at about
    `max_bytes`, as they are stored.
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
    # One more, which tells that others follow.
    wanted = places.order_by(*newest).limit(limit + 1)
    found = await list_rows(
        tx,
        select_answers().where(answer.c.session_key == session_key, answer.c.answer_id.in_(wanted)),
        size=_STORED_BYTES,
        order=newest,
        limit=limit,
        max_bytes=max_bytes,
    )
    return Listed(items=[from_row(row) for row in found.items], more=found.more)
