"""Sums spending by memory, session, tenant and day.

From running sums that a trigger of the ledger writes, so that they equal those of the ledger.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from enum import StrEnum
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, Select, Text, and_, cast, func, literal, select, text, tuple_

from storage.engine.database import Transaction
from storage.tables import memory, session, spend


class SpendLevel(StrEnum):
    """The level of lines."""

    #: One line for everything.
    TENANT = "tenant"
    SESSION = "session"
    #: Each memory, and each session for calls that no memory made.
    MEMORY = "memory"


@dataclass(frozen=True, kw_only=True, slots=True)
class Spend:
    """Sums of model calls. Tokens are as reported by providers."""

    calls: int = 0
    failed_calls: int = 0
    #: Tokens of all prompts.
    input_tokens: int = 0
    #: Those of them that the prefix cache predicted to be warm.
    predicted_cached_tokens: int = 0
    #: Those of them that providers reported as cached.
    reported_cached_tokens: int = 0
    #: Calls whose provider reports nothing of its cache.
    unreported_calls: int = 0
    cache_write_tokens: int = 0
    output_tokens: int = 0
    #: Millionths of a US dollar, of the calls that have a price.
    cost_micro_usd: int = 0
    unpriced_calls: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class SpendLine:
    """The sums of one line; fields that it is not split by are empty."""

    session: str
    memory: str
    #: In UTC; None when it is not split by days.
    day: date | None
    spend: Spend


@dataclass(frozen=True, kw_only=True, slots=True)
class Days:
    """Days in UTC, both included; None leaves that end open."""

    first: date | None = None
    last: date | None = None

    def bound(self, day: ColumnElement[Any]) -> Sequence[ColumnElement[bool]]:
        """Returns the conditions for a column of days."""
        clauses = []
        if self.first is not None:
            clauses.append(day >= self.first)
        if self.last is not None:
            clauses.append(day <= self.last)
        return clauses


@dataclass(frozen=True, kw_only=True, slots=True)
class SpendFilter:
    """Filters calls by owner and day."""

    session_key: UUID | None = None
    memory_id: UUID | None = None
    days: Days = Days()


_SUMS = tuple(
    func.coalesce(func.sum(spend.c[name]), 0).label(name) for name in Spend.__dataclass_fields__
)


def matching(wanted: SpendFilter, sums: Any = spend) -> list[Any]:
    """Returns the conditions for rows of `spend` or `call_sum`."""
    if wanted.session_key is None:
        # True of all, and the condition of the index of a tenant's rows.
        clauses: list[Any] = [sums.c.day > text("'-infinity'")]
    else:
        clauses = [sums.c.session_key == wanted.session_key]
    if wanted.memory_id is not None:
        clauses.append(sums.c.owner_id == wanted.memory_id)
    return [*clauses, *wanted.days.bound(sums.c.day)]


async def total(tx: Transaction, wanted: SpendFilter) -> Spend:
    """Returns one sum of everything."""
    statement = select(*_SUMS).where(spend.c.tenant_id == tx.tenant_id, *matching(wanted))
    return spend_of((await tx.fetch(statement))[0])


async def lines(
    tx: Transaction,
    wanted: SpendFilter,
    level: SpendLevel,
    *,
    by_day: bool,
    after: tuple[str, str, str] | None,
    limit: int,
) -> Sequence[SpendLine]:
    """Returns up to `limit` lines after `after` (session, memory, day), in this order."""
    rows = await tx.fetch(_lines(tx, wanted, level, by_day, after).limit(limit))
    return [
        SpendLine(
            session=row.session,
            memory=row.memory,
            day=date.fromisoformat(row.day) if row.day else None,
            spend=spend_of(row),
        )
        for row in rows
    ]


def _lines(
    tx: Transaction,
    wanted: SpendFilter,
    level: SpendLevel,
    by_day: bool,
    after: tuple[str, str, str] | None,
) -> Select[Any]:
    nothing = literal("", Text)
    named = level is not SpendLevel.TENANT
    keys = (
        (func.coalesce(session.c.name, "") if named else nothing).label("session"),
        (func.coalesce(memory.c.name, "") if level is SpendLevel.MEMORY else nothing).label(
            "memory"
        ),
        # ISO 8601 whatever the connection's style of dates is.
        (func.to_char(spend.c.day, "YYYY-MM-DD") if by_day else nothing).label("day"),
    )
    # Deleted sessions have no other rows.
    joined = spend.outerjoin(session, session.c.session_key == spend.c.session_key).outerjoin(
        memory,
        and_(memory.c.session_key == spend.c.session_key, memory.c.memory_id == spend.c.owner_id),
    )
    found = (
        select(*keys, *_SUMS)
        .select_from(joined)
        .where(spend.c.tenant_id == tx.tenant_id, *matching(wanted))
        .group_by(*(cast(key.element, Text) for key in keys))
    )
    ordered = found.subquery()
    place = (ordered.c.session, ordered.c.memory, ordered.c.day)
    statement = select(ordered).order_by(*place)
    return statement if after is None else statement.where(tuple_(*place) > tuple_(*after))


def spend_of(row: Any) -> Spend:
    """Returns the sums in a row whose columns have their names."""
    return Spend(**{name: int(getattr(row, name)) for name in Spend.__dataclass_fields__})


def added(many: Iterable[Spend]) -> Spend:
    """Returns the sum."""
    found = list(many)
    names = Spend.__dataclass_fields__
    return Spend(**{name: sum(getattr(one, name) for one in found) for name in names})
