"""Model calls: the ledger and journal."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, Row, and_, bindparam, func, or_, select

from storage.database import Transaction
from storage.ready import Ready
from storage.tables import call


@dataclass(frozen=True, kw_only=True, slots=True)
class UsageLine:
    """Calls of one purpose and model, summed."""

    purpose: str
    model: str
    calls: int
    input_tokens: int
    predicted_cached_tokens: int
    #: None when no call reported any.
    reported_cached_tokens: int | None
    output_tokens: int
    #: None when no call had a price.
    cost_micro_usd: int | None


_OCCASION = Ready(
    select(call.c.occasion)
    .where(
        call.c.session_key == bindparam("session"),
        call.c.memory_id == bindparam("memory"),
        # A range, not LIKE: it finds its way in the index whatever the collation.
        call.c.occasion >= bindparam("from"),
        call.c.occasion < bindparam("before"),
        call.c.reply.is_not(None),
    )
    .order_by(call.c.created_at.desc())
    .limit(1)
)


async def find_occasion(
    tx: Transaction, session_key: UUID, memory_id: UUID, prefix: str
) -> str | None:
    """The newest occasion that begins with `prefix` and has a reply; None without one."""
    keys = {"session": session_key, "memory": memory_id}
    found = await tx.rows(_OCCASION, {**keys, "from": prefix, "before": prefix + "\uffff"})
    return found[0][0] if found else None


async def usage(
    tx: Transaction,
    session_key: UUID,
    *,
    memory_id: UUID | None = None,
    occasion: str | None = None,
) -> Sequence[UsageLine]:
    """Sums of a session, of one of its memories, or of one occasion."""
    statement = (
        select(call.c.purpose, call.c.model, *_sums())
        .where(call.c.session_key == session_key)
        .group_by(call.c.purpose, call.c.model)
        .order_by(call.c.purpose, call.c.model)
    )
    if memory_id is not None:
        statement = statement.where(call.c.memory_id == memory_id)
    if occasion is not None:
        statement = statement.where(call.c.occasion == occasion)
    return [_line(row) for row in await tx.connection.execute(statement)]


async def usage_of(
    tx: Transaction,
    session_key: UUID,
    occasions: Collection[str],
    memories: Collection[UUID],
) -> Mapping[str, Sequence[UsageLine]]:
    """Sums of each of the occasions, whose calls are of these memories or of none."""
    # The index has the memory in front of the occasion.
    wanted = call.c.occasion.in_(occasions)
    statement = (
        select(call.c.occasion, call.c.purpose, call.c.model, *_sums())
        .where(
            call.c.session_key == session_key,
            or_(
                and_(call.c.memory_id.is_(None), wanted),
                and_(call.c.memory_id.in_(memories), wanted),
            ),
        )
        .group_by(call.c.occasion, call.c.purpose, call.c.model)
        .order_by(call.c.occasion, call.c.purpose, call.c.model)
    )
    found: dict[str, list[UsageLine]] = {}
    for row in await tx.connection.execute(statement):
        found.setdefault(row.occasion, []).append(_line(row))
    return found


#: Takes a session, the occasion of an answer's calls, and the answer. They are written of no
#: memory, or of the one that is asked or was chosen. Each part has one way into the index.
USAGE_OF_ANSWER = """
SELECT purpose, model, count(*), sum(input_tokens), sum(predicted_cached_tokens),
    sum(reported_cached_tokens), sum(output_tokens), sum(cost_micro_usd)
FROM (
    SELECT * FROM call
    WHERE session_key = %(session)s AND memory_id IS NULL AND occasion = %(occasion)s
    UNION ALL
    SELECT c.*
    FROM (
        SELECT DISTINCT v.id
        FROM answer AS a
        CROSS JOIN LATERAL (
            VALUES (a.memory_id), ((a.chosen ->> 'memory_id')::uuid)
        ) AS v (id)
        WHERE a.session_key = %(session)s AND a.answer_id = %(answer)s AND v.id IS NOT NULL
    ) AS m
    CROSS JOIN LATERAL (
        SELECT * FROM call
        WHERE session_key = %(session)s AND memory_id = m.id AND occasion = %(occasion)s
        OFFSET 0
    ) AS c
) AS found
GROUP BY purpose, model
ORDER BY purpose, model
"""


def lines(rows: Sequence[Sequence[Any]]) -> tuple[UsageLine, ...]:
    """Returns what USAGE_OF_ANSWER has found."""
    names = UsageLine.__dataclass_fields__
    told = ((*row[:2], *map(_int_or_none, row[2:])) for row in rows)
    return tuple(UsageLine(**dict(zip(names, one, strict=True))) for one in told)


async def usage_of_answer(
    tx: Transaction, session_key: UUID, answer_id: UUID, occasion: str
) -> tuple[UsageLine, ...]:
    """Sums of the calls that an answer has made, which are of that occasion."""
    values = {"session": session_key, "answer": answer_id, "occasion": occasion}
    return lines(await tx.rows(USAGE_OF_ANSWER, values))


def _sums() -> Sequence[ColumnElement[Any]]:
    return (
        func.count().label("calls"),
        func.sum(call.c.input_tokens).label("input_tokens"),
        func.sum(call.c.predicted_cached_tokens).label("predicted_cached_tokens"),
        func.sum(call.c.reported_cached_tokens).label("reported_cached_tokens"),
        func.sum(call.c.output_tokens).label("output_tokens"),
        func.sum(call.c.cost_micro_usd).label("cost_micro_usd"),
    )


def _line(row: Row[Any]) -> UsageLine:
    return UsageLine(
        purpose=row.purpose,
        model=row.model,
        calls=row.calls,
        input_tokens=int(row.input_tokens),
        predicted_cached_tokens=int(row.predicted_cached_tokens),
        reported_cached_tokens=_int_or_none(row.reported_cached_tokens),
        output_tokens=int(row.output_tokens),
        cost_micro_usd=_int_or_none(row.cost_micro_usd),
    )


def _int_or_none(value: object) -> int | None:
    return None if value is None else int(str(value))
