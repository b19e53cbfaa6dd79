"""Stores budgets, reads what is left of them, and checks them before a call begins.

A trigger of the ledger writes running sums of spending: one row of a session or a memory and a few
of a tenant, however long its history. The reservations of calls under way are in their `intent`.
One statement reads both, so that a call that ends meanwhile is in one or the other.
"""

from collections.abc import Iterable, Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import Table, func, select, text, update
from sqlalchemy import delete as sql_delete
from sqlalchemy.dialects.postgresql import insert

from service.domain.calls.ledger import CallScope
from service.domain.spend.budgets import (
    BudgetLimits,
    BudgetOwner,
    BudgetPeriod,
    BudgetScope,
    Standing,
    refusal,
)
from service.domain.values.errors import BudgetExhausted, CallBound
from storage.engine.claims import Claim, change
from storage.engine.clocks import interval
from storage.engine.database import Transaction, first, value
from storage.log.sessions import lock_in_order
from storage.tables import budget, memory, session, tenant_budget

#: A call whose lease expired so long ago, in seconds, reserves nothing: its executor died, and will
#: not store an outcome any more.
FORGOTTEN_SECONDS = 900

# A sum has the figures of its newest day only. If the server's clock was set back across a
# midnight, that day is in the future, and the spending of today is summed from the rows.
_SUMS = """
CROSS JOIN (
    SELECT clock_timestamp() AS now, (clock_timestamp() AT TIME ZONE 'UTC')::date AS today
) c
CROSS JOIN LATERAL (
    SELECT coalesce(sum(CASE b.period WHEN 'day' THEN day_tokens ELSE tokens END), 0)::bigint
            AS tokens,
        coalesce(sum(CASE b.period WHEN 'day' THEN day_micro_usd ELSE micro_usd END), 0)::bigint
            AS micro_usd,
        coalesce(sum(CASE b.period WHEN 'day' THEN day_unpriced_calls ELSE unpriced_calls END),
            0)::bigint AS unpriced,
        coalesce(bool_or(b.period = 'day' AND day > c.today), false) AS is_ahead
    FROM {sums} AND (b.period = 'total' OR day >= c.today)
) s
CROSS JOIN LATERAL (
    SELECT coalesce(sum(input_tokens + output_tokens), 0)::bigint AS tokens,
        coalesce(sum(cost_micro_usd), 0)::bigint AS micro_usd,
        coalesce(sum(unpriced_calls), 0)::bigint AS unpriced
    FROM spend WHERE s.is_ahead AND {spend} AND day = c.today
) a
CROSS JOIN LATERAL (
    SELECT coalesce(sum(reserved_tokens), 0)::bigint AS tokens,
        coalesce(sum(reserved_micro_usd), 0)::bigint AS micro_usd
    FROM intent
    WHERE {intent} AND key <> ALL (%(keys)s::bytea[])
        AND lease_until > c.now - interval '{forgotten} seconds'
) i
"""

_COLUMNS = """b.period, b.limit_tokens, b.limit_micro_usd,
    CASE WHEN s.is_ahead THEN a.tokens ELSE s.tokens END AS spent_tokens,
    CASE WHEN s.is_ahead THEN a.micro_usd ELSE s.micro_usd END AS spent_micro_usd,
    CASE WHEN s.is_ahead THEN a.unpriced ELSE s.unpriced END AS unpriced_calls,
    i.tokens AS reserved_tokens, i.micro_usd AS reserved_micro_usd,
    (c.today + 1)::timestamp AT TIME ZONE 'UTC' AS day_end,
    extract(epoch FROM ((c.today + 1)::timestamp AT TIME ZONE 'UTC') - c.now)::float8
        AS day_seconds"""
_FIGURES = (
    "limit_tokens",
    "limit_micro_usd",
    "spent_tokens",
    "spent_micro_usd",
    "unpriced_calls",
    "reserved_tokens",
    "reserved_micro_usd",
    "day_end",
    "day_seconds",
)

_OF_TENANT = f"""
SELECT NULL::uuid AS session_key, NULL::uuid AS owner_id, '' AS session, '' AS memory, {_COLUMNS}
FROM tenant_budget b
{
    _SUMS.format(
        sums="tenant_spend_sum WHERE tenant_id = b.tenant_id",
        spend="tenant_id = b.tenant_id AND day > '-infinity'",
        intent="tenant_id = b.tenant_id AND created_at > '-infinity'",
        forgotten=FORGOTTEN_SECONDS,
    )
}
WHERE b.tenant_id = %(tenant)s::uuid
"""  # noqa: S608 - all of it is ours

_OF_SESSION_OR_MEMORY = f"""
SELECT b.session_key, b.owner_id,
    (SELECT name FROM session n WHERE n.session_key = b.session_key) AS session,
    coalesce((SELECT name FROM memory m
        WHERE m.session_key = b.session_key AND m.memory_id = b.owner_id), '') AS memory,
    {_COLUMNS}
FROM {{budgets}} b
{
    _SUMS.format(
        sums="spend_sum WHERE session_key = b.session_key AND owner_id = b.owner_id",
        spend="session_key = b.session_key AND b.owner_id IN (session_key, owner_id)",
        intent="session_key = b.session_key AND b.owner_id IN (session_key, memory_id)",
        forgotten=FORGOTTEN_SECONDS,
    )
}
"""  # noqa: S608 - all of it is ours

# For statements that look up their arguments one by one: their plans are made once, and read no
# whole table, whatever the statistics were then.
ONE_BY_ONE = (
    "SELECT set_config('enable_seqscan', 'off', true),"
    " set_config('plan_cache_mode', 'force_generic_plan', true)"
)
_OWNERS = "unnest(%(sessions)s::uuid[], %(owners)s::uuid[]) AS w (session_key, owner_id)"
_CONCERNING = f"""(
    SELECT o.* FROM {_OWNERS} CROSS JOIN LATERAL (
        SELECT * FROM budget
        WHERE budget.session_key = w.session_key AND budget.owner_id = w.owner_id OFFSET 0
    ) o
)"""  # noqa: S608 - as above
_OF_CALLS = f"{_OF_TENANT} UNION ALL {_OF_SESSION_OR_MEMORY.format(budgets=_CONCERNING)}"
_ALL = (
    f"{_OF_TENANT} UNION ALL {_OF_SESSION_OR_MEMORY.format(budgets='budget')}"
    " WHERE b.tenant_id = %(tenant)s::uuid"
)

#: The tenant's first, then by session, and a session's own before those of its memories.
_PAGE = (
    f"SELECT * FROM ({_ALL}) l"  # noqa: S608 - as above
    " WHERE (%(named)s::text IS NULL OR l.session = %(named)s::text)"
    " AND (l.session, l.memory, l.period) > (%(after_session)s, %(after_memory)s, %(after_period)s)"
    " ORDER BY l.session, l.memory, l.period LIMIT %(limit)s"
)

_ONE = (
    f"SELECT * FROM ({_ALL}) l"  # noqa: S608 - as above
    " WHERE l.session = %(session)s AND l.memory = %(memory)s AND l.period = %(period)s"
)


#: Returns whether any budget concerns calls of these owners; its values are `keys`.
CONCERNED = f"""
SELECT EXISTS (SELECT 1 FROM tenant_budget WHERE tenant_id = %(tenant)s::uuid)
    OR EXISTS (SELECT 1 FROM {_CONCERNING} b)
"""  # noqa: S608 - as above

# Always in this order, that of `keys`, or two calls would deadlock.
_LOCK = (
    "SELECT period FROM tenant_budget WHERE tenant_id = %(tenant)s::uuid"
    " ORDER BY period FOR UPDATE",
    f"SELECT o.period FROM {_OWNERS} CROSS JOIN LATERAL (SELECT period FROM budget"  # noqa: S608
    " WHERE budget.session_key = w.session_key AND budget.owner_id = w.owner_id"
    " ORDER BY period FOR UPDATE) o",
)


def _standing(row: Sequence[Any]) -> Standing:
    _, _, session, name, period, *figures = row
    scope = BudgetScope.MEMORY if name else BudgetScope.SESSION if session else BudgetScope.TENANT
    owner = BudgetOwner(scope=scope, session=session, memory=name)
    named = dict(zip(_FIGURES, figures, strict=True))
    return Standing(owner=owner, period=BudgetPeriod(period), **named)


def keys(tenant_id: UUID, scopes: Iterable[CallScope]) -> dict[str, object]:
    """Returns the values of CONCERNED: sessions, each before its memories."""
    pairs = {
        (one.session_key, owner) for one in scopes for owner in (one.session_key, one.owner_id)
    }
    in_order = sorted(pairs, key=lambda pair: (pair[0], pair[0] != pair[1], pair[1]))
    return {
        "tenant": tenant_id,
        "sessions": [session for session, _ in in_order],
        "owners": [owner for _, owner in in_order],
    }


async def refusals(
    tx: Transaction, asked: Sequence[tuple[CallScope, CallBound]]
) -> list[BudgetExhausted | None]:
    """Returns the refusal of each of these calls by budgets; None for an allowed one.

    Does as `check`, after the intents of all of them. An allowed call reserves its size before the
    next one is checked.
    """
    named = keys(tx.tenant_id, (scope for scope, _ in asked))
    named["keys"] = [one.key for _, one in asked]
    *_, rows = await tx.pipeline((*_LOCK, _OF_CALLS), named)
    standings = [((row[0], row[1]), _standing(row)) for row in rows]
    found = []
    for scope, one in asked:
        concerned = _concerned(scope)
        refused = refusal((each for of, each in standings if of in concerned), one)
        if refused is None:
            standings = [
                (of, each.reserving(one) if of in concerned else each) for of, each in standings
            ]
        found.append(refused)
    return found


def _concerned(scope: CallScope) -> set[tuple[UUID | None, UUID | None]]:
    """Returns the owners of budgets that concern a call; the tenant's have no keys."""
    key = scope.session_key
    return {(None, None), (key, key), (key, scope.owner_id)}


async def check(
    tx: Transaction, scope: CallScope, *, tokens: int, micro_usd: int | None, key: bytes = b""
) -> None:
    """Raises BudgetExhausted when a budget does not allow a call of at most this size.

    `micro_usd` is None where no price is known.

    It locks the budgets concerned until the transaction ends, so that none changes meanwhile. The
    call's own intent does not count. Without budgets it costs one query and locks nothing.
    """
    if not value(await tx.fetch(CONCERNED, keys(tx.tenant_id, (scope,)), prepare=None)):
        return
    await tx.execute(ONE_BY_ONE, prepare=None)
    asked = CallBound(tokens=tokens, micro_usd=micro_usd, key=key)
    (refused,) = await refusals(tx, [(scope, asked)])
    if refused is not None:
        raise refused


async def put(
    tx: Transaction,
    place: tuple[UUID, UUID] | None,
    period: BudgetPeriod,
    *,
    limit_tokens: int | None,
    limit_micro_usd: int | None,
) -> None:
    """Sets a budget, in place of an earlier one.

    `place` is session and owner (the session itself, or a memory); None is the tenant.
    """
    table, key = _row(tx, place, period)
    limits = {"limit_tokens": limit_tokens, "limit_micro_usd": limit_micro_usd}
    values = {**key, **limits, "tenant_id": tx.tenant_id}
    statement = insert(table).values(values)
    await tx.execute(statement.on_conflict_do_update(index_elements=list(key), set_=limits))


async def lock(
    tx: Transaction, place: tuple[UUID, UUID] | None, period: BudgetPeriod
) -> BudgetLimits | None:
    """Returns the limits of a budget and locks it; None without one."""
    table, key = _row(tx, place, period)
    statement = (
        select(table.c.limit_tokens, table.c.limit_micro_usd)
        .where(*(table.c[name] == value for name, value in key.items()))
        .with_for_update()
    )
    row = first(await tx.fetch(statement))
    return None if row is None else BudgetLimits(tokens=row[0], micro_usd=row[1])


async def delete(tx: Transaction, place: tuple[UUID, UUID] | None, period: BudgetPeriod) -> bool:
    """Deletes a budget; False when there was none."""
    table, key = _row(tx, place, period)
    statement = sql_delete(table).where(*(table.c[name] == value for name, value in key.items()))
    return await tx.execute(statement) == 1


def _row(
    tx: Transaction, place: tuple[UUID, UUID] | None, period: BudgetPeriod
) -> tuple[Table, dict[str, Any]]:
    if place is None:
        return tenant_budget, {"tenant_id": tx.tenant_id, "period": period.value}
    session_key, owner_id = place
    return budget, {"session_key": session_key, "owner_id": owner_id, "period": period.value}


async def page(
    tx: Transaction, *, named: str | None, after: tuple[str, str, str], limit: int
) -> Sequence[Standing]:
    """Returns up to `limit` budgets after `after` (session, memory, period), the tenant's first.

    With `named` only those of that session and its memories.
    """
    rows = await tx.fetch(
        _PAGE,
        {
            "tenant": tx.tenant_id,
            "named": named,
            "after_session": after[0],
            "after_memory": after[1],
            "after_period": after[2],
            "limit": limit,
            "keys": [],
        },
        prepare=None,
    )
    return [_standing(row) for row in rows]


async def get(tx: Transaction, owner: BudgetOwner, period: BudgetPeriod) -> Standing | None:
    """Returns the state of a budget; None when it is not set."""
    values = {"tenant": tx.tenant_id, "keys": [], "period": period.value}
    names = {"session": owner.session, "memory": owner.memory}
    row = first(await tx.fetch(_ONE, {**values, **names}, prepare=None))
    return None if row is None else _standing(row)


async def hold(tx: Transaction, held: Claim, error: BudgetExhausted) -> None:
    """Defers a memory until its budgets may allow its next call, without counting a try.

    It shows the reason, unless it only waits for calls under way. `error` is from `check` in this
    transaction: with the budgets locked, none can be raised unseen. Raises Fenced when the claim is
    lost.
    """
    seconds = error.resume_seconds
    ready_at: Any = text("'infinity'::timestamptz")
    if seconds is not None:
        # Not now(), which is before the budgets were read.
        ready_at = func.clock_timestamp() + interval(seconds)
    reason = None if error.waits_for_calls else error.message
    await change(tx, held, ready_at=ready_at, held_reason=reason)


async def wake(tx: Transaction, place: tuple[UUID, UUID] | None) -> Sequence[tuple[UUID, UUID]]:
    """Wakes the deferred memories that a budget concerns; returns their keys."""
    concerned = [memory.c.tenant_id == tx.tenant_id, memory.c.held_reason.is_not(None)]
    if place is not None:
        session_key, owner_id = place
        concerned.append(memory.c.session_key == session_key)
        if owner_id != session_key:
            concerned.append(memory.c.memory_id == owner_id)
    sessions = select(memory.c.session_key).where(*concerned)
    await lock_in_order(tx, session.c.session_key.in_(sessions))
    woken = (
        update(memory)
        .where(*concerned)
        .values(ready_at=func.now(), held_reason=None)
        .returning(memory.c.session_key, memory.c.memory_id)
    )
    rows = await tx.fetch(woken)
    return [(row.session_key, row.memory_id) for row in rows]
