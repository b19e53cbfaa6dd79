"""Verifies and repairs the running sums that budgets are checked against.

Triggers of the ledger change `call_sum`, of which `spend` is a view, and the sums in one
transaction. So the difference between sums and rows stays the same whatever is recorded meanwhile,
and may be added without a lock on either.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from uuid import UUID

from storage.engine.database import Transaction

_FIGURES = ("tokens", "micro_usd", "unpriced_calls")
_OF_DAY = tuple(f"day_{name}" for name in _FIGURES)
_COLUMNS = ", ".join((*_FIGURES, "day", *_OF_DAY))

#: Only one at a time: two would add the same difference.
_ALONE = "SELECT pg_advisory_xact_lock(x'70616c73'::bigint)"


@dataclass(frozen=True, kw_only=True, slots=True)
class SumOff:
    """The difference of a wrong sum to its rows, less than 0 where the sum is too large."""

    #: The memory, the session for all that belongs to it, or the tenant.
    owner_id: UUID
    #: The newest day with calls.
    day: date
    #: In total.
    tokens: int
    micro_usd: int
    unpriced_calls: int
    #: What was spent on that day.
    day_tokens: int
    day_micro_usd: int
    day_unpriced_calls: int


@dataclass(frozen=True, kw_only=True, slots=True)
class DayOff:
    """The difference of a wrong day of `spend` to the ledger; as `SumOff`."""

    #: The memory, or the session for calls that no memory made.
    owner_id: UUID
    day: date
    calls: int
    failed_calls: int
    tokens: int
    micro_usd: int
    unpriced_calls: int


_LACKING = """
SELECT {keys}, last AS day,
    sum(tokens)::bigint AS tokens, sum(micro_usd)::bigint AS micro_usd,
    sum(unpriced_calls)::bigint AS unpriced_calls,
    coalesce(sum(day_tokens) FILTER (WHERE day = last), 0)::bigint AS day_tokens,
    coalesce(sum(day_micro_usd) FILTER (WHERE day = last), 0)::bigint AS day_micro_usd,
    coalesce(sum(day_unpriced_calls) FILTER (WHERE day = last), 0)::bigint AS day_unpriced_calls
FROM (
    SELECT m.*, max(day) OVER (PARTITION BY {keys}) AS last FROM (
        {spent}
        UNION ALL
        SELECT {keys}, day, -tokens, -micro_usd, -unpriced_calls,
            -day_tokens, -day_micro_usd, -day_unpriced_calls
        FROM {sums}
    ) m
) d
GROUP BY {keys}, last
"""
_SPENT = """SELECT {keys}, day, sum(input_tokens + output_tokens) AS tokens,
            sum(cost_micro_usd) AS micro_usd, sum(unpriced_calls) AS unpriced_calls,
            sum(input_tokens + output_tokens) AS day_tokens,
            sum(cost_micro_usd) AS day_micro_usd, sum(unpriced_calls) AS day_unpriced_calls
        FROM spend WHERE {which} GROUP BY {by}"""
_FIND = f"""
SELECT {{owner}} AS owner_id, {_COLUMNS} FROM ({{lacking}}) l
WHERE ({", ".join((*_FIGURES, *_OF_DAY))}) <> (0, 0, 0, 0, 0, 0) ORDER BY 1
"""  # noqa: S608 - all of it is ours
# As the trigger adds.
_MEND = f"""
INSERT INTO {{sums}} AS s ({{keys}}, {_COLUMNS})
SELECT {{of}}, {_COLUMNS} FROM ({{lacking}}) l
WHERE ({", ".join((*_FIGURES, *_OF_DAY))}) <> (0, 0, 0, 0, 0, 0) ORDER BY 1, 2
ON CONFLICT ({{pkey}}) DO UPDATE SET
    {", ".join(f"{name} = s.{name} + excluded.{name}" for name in _FIGURES)},
    day = greatest(s.day, excluded.day),
    {
    ", ".join(
        f"{name} = CASE WHEN s.day > excluded.day THEN s.{name}"
        f" WHEN s.day = excluded.day THEN s.{name} + excluded.{name} ELSE excluded.{name} END"
        for name in _OF_DAY
    )
}
"""  # noqa: S608 - as above

_OWNER = "session_key, owner_id, tenant_id"
_SESSION = "session_key = %(session)s"
_OF_SESSION = _LACKING.format(
    keys=_OWNER,
    spent=_SPENT.format(
        keys=_OWNER, which=f"{_SESSION} AND owner_id <> session_key", by="1, 2, 3, 4"
    )
    + "\n        UNION ALL\n        "
    + _SPENT.format(keys="session_key, session_key, tenant_id", which=_SESSION, by="1, 2, 3, 4"),
    sums=f"spend_sum WHERE {_SESSION}",
)
_TENANT = "tenant_id = %(tenant)s"
_OF_TENANT = _LACKING.format(
    keys="tenant_id",
    # With the condition of the index of a tenant's rows, call_sum_by_tenant.
    spent=_SPENT.format(keys="tenant_id", which=f"{_TENANT} AND day > '-infinity'", by="1, 2"),
    sums=f"tenant_spend_sum WHERE {_TENANT}",
)
_FIND_OF_SESSION = _FIND.format(owner="owner_id", lacking=_OF_SESSION)
_FIND_OF_TENANT = _FIND.format(owner="tenant_id", lacking=_OF_TENANT)
_MEND_OF_SESSION = _MEND.format(
    sums="spend_sum", keys=_OWNER, of=_OWNER, pkey="session_key, owner_id", lacking=_OF_SESSION
)
_MEND_OF_TENANT = _MEND.format(
    sums="tenant_spend_sum",
    keys="tenant_id, slot",
    of="tenant_id, 0",
    pkey="tenant_id, slot",
    lacking=_OF_TENANT,
)

_OF_LEDGER = """
SELECT owner_id, day, sum(calls)::bigint AS calls, sum(failed_calls)::bigint AS failed_calls,
    sum(tokens)::bigint AS tokens, sum(micro_usd)::bigint AS micro_usd,
    sum(unpriced_calls)::bigint AS unpriced_calls
FROM (
    SELECT coalesce(memory_id, session_key) AS owner_id,
        (created_at AT TIME ZONE 'UTC')::date AS day, (reply IS NOT NULL)::int AS calls,
        (reply IS NULL)::int AS failed_calls, input_tokens + output_tokens AS tokens,
        coalesce(cost_micro_usd, 0) AS micro_usd,
        (reply IS NOT NULL AND cost_micro_usd IS NULL)::int AS unpriced_calls
    FROM call WHERE session_key = %(session)s
    UNION ALL
    SELECT owner_id, day, -calls, -failed_calls, -(input_tokens + output_tokens),
        -cost_micro_usd, -unpriced_calls
    FROM spend WHERE session_key = %(session)s
) m
GROUP BY 1, 2
HAVING (sum(calls), sum(failed_calls), sum(tokens), sum(micro_usd), sum(unpriced_calls))
    <> (0, 0, 0, 0, 0)
ORDER BY 1, 2
"""


async def days_off(tx: Transaction, session_key: UUID) -> Sequence[DayOff]:
    """Returns the days of a session that differ from the ledger."""
    rows = await tx.fetch(_OF_LEDGER, {"session": session_key}, prepare=None)
    return [DayOff(**row._asdict()) for row in rows]


async def sums_off(tx: Transaction, session_key: UUID | None) -> Sequence[SumOff]:
    """Returns the sums of a session and its memories that differ from its rows.

    Without a session, those of the tenant.
    """
    find = _FIND_OF_TENANT if session_key is None else _FIND_OF_SESSION
    named = {"session": session_key, "tenant": tx.tenant_id}
    rows = await tx.fetch(find, named, prepare=None)
    return [SumOff(**row._asdict()) for row in rows]


async def mend(tx: Transaction, session_key: UUID | None) -> None:
    """Repairs what `sums_off` returns; calls may be recorded meanwhile."""
    mended = _MEND_OF_TENANT if session_key is None else _MEND_OF_SESSION
    await tx.execute(_ALONE, prepare=None)
    named = {"session": session_key, "tenant": tx.tenant_id}
    await tx.execute(mended, named, prepare=None)
