"""Reads the ledger of model calls."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import ScalarSelect, Text, bindparam, select

from storage.engine.database import Transaction
from storage.engine.ready import Ready
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
    """Returns a value that the planner does not know, so that it keeps one plan for all."""
    return select(bindparam(name, type_=Text(collation="C"))).scalar_subquery()


_OCCASION = Ready(
    select(call.c.occasion)
    .where(
        call.c.session_key == bindparam("session"),
        call.c.memory_id == bindparam("memory"),
        # A range, not LIKE: it uses the index whatever the collation is.
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
    """Returns the newest occasion that begins with `prefix` and has a reply; None without one."""
    keys = {"session": session_key, "memory": memory_id}
    found = await tx.fetch(_OCCASION, {**keys, "from": prefix, "before": prefix + "\uffff"})
    return found[0][0] if found else None


_SUMMED = (
    "input_tokens",
    "predicted_cached_tokens",
    "reported_cached_tokens",
    "output_tokens",
    "cost_micro_usd",
)
_SUMS = ", ".join(f"sum({name})::bigint AS {name}" for name in _SUMMED)
#: One look-up in the index for each memory and occasion. The order is that of the index: another
#: index, which would be read for all calls of the session, would have to sort.
_OF_MEMORY = f"""
    SELECT purpose, model, {", ".join(_SUMMED)} FROM call c
    WHERE c.session_key = %(session)s AND c.memory_id {{memory}}
        AND c.occasion >= {{occasion}} AND c.occasion <= {{occasion}}
    ORDER BY c.memory_id, c.occasion OFFSET 0
"""  # noqa: S608 - all of it is ours
_USAGE_OF = f"""
SELECT w.occasion, purpose, model, count(*) AS calls, {_SUMS}
FROM unnest(%(occasions)s::text[]) AS w (occasion), LATERAL (
    ({_OF_MEMORY.format(memory="IS NULL", occasion="w.occasion")})
    UNION ALL
    SELECT c.* FROM unnest(%(memories)s::uuid[]) AS o (memory_id),
        LATERAL ({_OF_MEMORY.format(memory="= o.memory_id", occasion="w.occasion")}) AS c
) AS made
GROUP BY w.occasion, purpose, model ORDER BY w.occasion, purpose, model
"""  # noqa: S608 - as above


async def usage_of(
    tx: Transaction,
    session_key: UUID,
    occasions: Collection[str],
    memories: Collection[UUID] = (),
) -> Mapping[str, Sequence[UsageLine]]:
    """Returns the sums of each occasion, whose calls are of these memories or of none."""
    values = {
        "session": session_key,
        "occasions": list(dict.fromkeys(occasions)),
        "memories": list(dict.fromkeys(memories)),
    }
    found: dict[str, list[UsageLine]] = {}
    for row in await tx.fetch(_USAGE_OF, values, prepare=None):
        line = row._asdict()
        found.setdefault(line.pop("occasion"), []).append(UsageLine(**line))
    return found


#: Its values are a session, an answer, and the occasion of its calls. These are of no memory, or of
#: the one that is asked or was chosen. Each part uses the index in one way.
USAGE_OF_ANSWER = f"""
SELECT purpose, model, count(*) AS calls, {_SUMS}
FROM (
    ({_OF_MEMORY.format(memory="IS NULL", occasion="%(occasion)s")})
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
    CROSS JOIN LATERAL ({_OF_MEMORY.format(memory="= m.id", occasion="%(occasion)s")}) AS c
) AS found
GROUP BY purpose, model
ORDER BY purpose, model
"""  # noqa: S608 - as above


def lines(rows: Sequence[Any]) -> tuple[UsageLine, ...]:
    """Returns the sums in rows of USAGE_OF_ANSWER."""
    return tuple(UsageLine(**row._asdict()) for row in rows)


async def usage_of_answer(
    tx: Transaction, session_key: UUID, answer_id: UUID, occasion: str
) -> tuple[UsageLine, ...]:
    """Returns the sums of an answer's calls, which have that occasion."""
    values = {"session": session_key, "answer": answer_id, "occasion": occasion}
    return lines(await tx.fetch(USAGE_OF_ANSWER, values))
