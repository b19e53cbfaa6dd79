"""What the calls of a session add up to, for tests that count them."""

from dataclasses import dataclass
from uuid import UUID

from storage.engine.database import Transaction

_SUMS = """
SELECT purpose, model, sum(calls)::int8, sum(input_tokens)::int8,
    CASE WHEN sum(reported_calls) > 0 THEN sum(reported_cached_tokens)::int8 END,
    CASE WHEN sum(priced_calls) > 0 THEN sum(cost_micro_usd)::int8 END
FROM call_sum WHERE session_key = %(session)s
GROUP BY purpose, model ORDER BY purpose, model
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class SummedCalls:
    """Calls of one purpose and model."""

    purpose: str
    model: str
    calls: int
    input_tokens: int
    #: None when no call reported any.
    reported_cached_tokens: int | None
    #: None when no call had a price.
    cost_micro_usd: int | None


async def usage_of_session(tx: Transaction, session_key: UUID) -> list[SummedCalls]:
    """Returns the sums of a session's calls."""
    names = SummedCalls.__dataclass_fields__
    rows = await tx.fetch(_SUMS, {"session": session_key})
    return [SummedCalls(**dict(zip(names, row, strict=True))) for row in rows]
