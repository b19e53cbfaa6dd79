"""Lists the answers of a session: all, newest first, or the found ones, oldest first."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Column, ColumnElement, Text, cast, func, literal, tuple_

from service.domain.values.memory_specs import ReaderName
from storage.answers.answers import IS_RUNNING, StoredAnswer, from_row, select_answers
from storage.answers.ratings import BAD, GOOD
from storage.engine.database import Transaction
from storage.engine.listing import ListPage, walk_rows
from storage.tables import answer, answer_rating, memory

#: The place of an answer in a list: when it was asked, and its id.
PageCursor = tuple[datetime, UUID]


def _size(column: Column[Any]) -> ColumnElement[int]:
    """Returns SQL for a value's size in bytes; for JSON its text's, since it may be compressed."""
    whole = column if isinstance(column.type, Text) else cast(column, Text)
    return func.coalesce(func.octet_length(whole), 0)


#: Columns of an answer's row that may be long, including its memory's spec.
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
    answer_rating.c.comment,
    answer_rating.c.expected,
)
_BYTES = sum((_size(one) for one in _LONG), literal(0))


async def list_newest(
    tx: Transaction,
    session_key: UUID,
    *,
    memory_id: UUID | None,
    status: str | None,
    is_running: bool | None = None,
    before: PageCursor | None,
    limit: int,
    max_bytes: int,
) -> ListPage[StoredAnswer]:
    """Returns up to `limit` answers that were asked before `before`, newest first.

    Where they are given, only those of the memory, with the status, and running or not. Ends at
    about `max_bytes`.
    """
    wanted = select_answers().where(answer.c.session_key == session_key)
    if memory_id is not None:
        wanted = wanted.where(answer.c.memory_id == memory_id)
    if status is not None:
        wanted = wanted.where(answer.c.status == status)
    if is_running is not None:
        wanted = wanted.where(IS_RUNNING if is_running else ~IS_RUNNING)
    if before is not None:
        wanted = wanted.where(tuple_(answer.c.created_at, answer.c.answer_id) < tuple_(*before))
    found = await walk_rows(
        tx,
        wanted,
        key=answer.c.answer_id,
        size=_BYTES,
        order=(answer.c.created_at.desc(), answer.c.answer_id.desc()),
        limit=limit,
        max_bytes=max_bytes,
    )
    return ListPage(items=[from_row(row) for row in found.items], more=found.more)


async def list_answered(
    tx: Transaction,
    session_key: UUID,
    memory_id: UUID | None,
    *,
    after: PageCursor | None,
    limit: int,
    ids: Sequence[UUID] = (),
    good: bool | None = None,
) -> Sequence[StoredAnswer]:
    """Returns complete answers that were found, not guessed, after `after`, oldest first.

    Those that were navigated to in a memory, or without one those that were browsed, also by choice
    of the automatic reader. If given, only those with one of the `ids`, and only those that were
    rated `good`, or bad.
    """
    chosen = answer.c.chosen
    if memory_id is None:
        by_name = answer.c.reader == ReaderName.DCISO
        reading = by_name | (chosen["reader"].as_string() == ReaderName.DCISO)
    else:
        asked = (answer.c.memory_id == memory_id) & answer.c.navigation.is_not(None)
        is_it = chosen["memory_id"].as_string() == str(memory_id)
        navigated = chosen["navigation"].as_string().is_not(None)
        # Where the log was browsed after a navigation, the answer is not the navigation's.
        found = answer.c.statistics.is_not(None)
        reading = (chosen.is_(None) & asked) | (is_it & navigated & found)
    statement = (
        select_answers()
        .where(
            answer.c.session_key == session_key,
            reading,
            answer.c.status == "complete",
            answer.c.no_answer.is_(None),
            ~answer.c.guessed,
            *(() if not ids else (answer.c.answer_id.in_(ids),)),
            *(() if good is None else (answer_rating.c.rating == (GOOD if good else BAD),)),
            *(
                ()
                if after is None
                else (tuple_(answer.c.created_at, answer.c.answer_id) > tuple_(*after),)
            ),
        )
        .order_by(answer.c.created_at, answer.c.answer_id)
        .limit(limit)
    )
    return [from_row(row) for row in await tx.fetch(statement)]
