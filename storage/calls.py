"""Model calls: the ledger and journal."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, Row, ScalarSelect, Text, and_, bindparam, func, or_, select

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


def _hidden(name: str) -> ScalarSelect[Any]:
    """A value that the planner does not know, so that a plan is kept for all of them."""
    return select(bindparam(name, type_=Text(collation="C"))).scalar_subquery()


_OCCASION = Ready(
    select(call.c.occasion)
    .where(
        call.c.session_key == bindparam("session"),
        call.c.memory_id == bindparam("memory"),
        # A range, not LIKE: it finds its way in the index whatever the collation.
        call.c.occasion >= _hidden("from"),
        call.c.occasion < _hidden("before"),
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
