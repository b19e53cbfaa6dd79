"""Stores which answers clients wait for, and abandons the others.

An answer is wanted until `wanted_until`, and its `waiter` is the server process whose client began
to wait last. Without a `waiter` all clients have left, and no worker begins it. An answer that is
wanted for ever has neither.
"""

from collections.abc import Collection
from typing import Any
from uuid import UUID

from storage.answers.trajectories import AnswerKey
from storage.engine.database import Transaction

#: The failure of an abandoned answer.
ABANDONED = "no client waited for it any more; resume it to continue from the paid calls"

# A crash of the database may lose it: then an answer is abandoned, or continued, a little sooner or
# later. Each row is found by its key, whatever number the planner expects.
_LAZILY_BY_KEY = (
    "SET LOCAL synchronous_commit = off",
    "SET LOCAL enable_seqscan = off",
    "SET LOCAL enable_hashjoin = off",
    "SET LOCAL enable_mergejoin = off",
)

#: Does not write again what was written a moment ago. Citus accepts no now() in a CASE.
_WANT = """
UPDATE answer AS a SET
    status = 'pending',
    failure = '',
    waiter = %(waiter)s,
    wanted_until = clock.at + make_interval(secs => %(seconds)s),
    ready_at = CASE WHEN a.waiter IS NULL OR a.status = 'abandoned' THEN clock.at
        ELSE a.ready_at END
FROM unnest(%(sessions)s::uuid[], %(answers)s::uuid[]) AS k (session_key, answer_id),
    (SELECT now() AS at) AS clock
WHERE a.session_key = k.session_key AND a.answer_id = k.answer_id
    AND a.status = ANY (%(statuses)s) AND a.wanted_until IS NOT NULL
    AND (
        a.waiter IS NULL
        OR a.status = 'abandoned'
        OR a.wanted_until < clock.at + make_interval(secs => %(seconds)s * 2 / 3)
        OR (a.waiter <> %(waiter)s AND %(takes_over)s)
    )
"""

#: Leaves alone answers that a client of another process waits for by now.
_LEAVE = """
UPDATE answer AS a SET
    waiter = NULL,
    wanted_until = clock.until,
    -- Then a worker checks whether it is wanted again.
    ready_at = greatest(a.ready_at, clock.until)
FROM unnest(%(sessions)s::uuid[], %(answers)s::uuid[]) AS k (session_key, answer_id),
    (SELECT now() + make_interval(secs => %(seconds)s) AS until) AS clock
WHERE a.session_key = k.session_key AND a.answer_id = k.answer_id
    AND a.status = 'pending' AND a.waiter = %(waiter)s
"""

_PUT_ASIDE = """
UPDATE answer SET ready_at = greatest(ready_at, wanted_until)
WHERE session_key = %(session)s AND answer_id = %(answer)s
    AND status = 'pending' AND waiter IS NULL AND wanted_until IS NOT NULL
RETURNING true
"""

_ABANDON = """
UPDATE answer AS a SET
    status = 'abandoned', failure = %(cause)s, waiting_model = NULL, waiting_cause = NULL
FROM unnest(%(sessions)s::uuid[], %(answers)s::uuid[]) AS k (session_key, answer_id)
WHERE a.session_key = k.session_key AND a.answer_id = k.answer_id
    AND a.status = 'pending' AND a.wanted_until <= now()
RETURNING a.answer_id
"""

_GIVEN_UP = """
SELECT k.answer_id, coalesce(a.status, 'cancelled')
FROM unnest(%(sessions)s::uuid[], %(answers)s::uuid[]) AS k (session_key, answer_id)
LEFT JOIN LATERAL (
    SELECT status, wanted_until FROM answer
    WHERE session_key = k.session_key AND answer_id = k.answer_id
    OFFSET 0
) AS a ON true
WHERE a.status IS NULL OR a.status IN ('cancelled', 'abandoned')
    OR a.status = 'pending' AND a.wanted_until <= now()
"""


def _keys(answers: Collection[AnswerKey]) -> dict[str, Any]:
    # In one order, so that two statements lock rows in the same order.
    ordered = sorted(answers)
    return {"sessions": [key for key, _ in ordered], "answers": [one for _, one in ordered]}


async def renew(
    tx: Transaction, answers: Collection[AnswerKey], *, waiter: UUID, seconds: float
) -> None:
    """Stores that clients of a process still wait for these answers, for so long.

    Answers that were abandoned meanwhile continue. A whole transaction, in one round trip.
    """
    values = {
        **_keys(answers),
        "waiter": waiter,
        "seconds": seconds,
        "statuses": ["pending", "abandoned"],
        "takes_over": False,
    }
    await tx.pipeline((*_LAZILY_BY_KEY, _WANT), values)


async def leave(
    tx: Transaction, answers: Collection[AnswerKey], *, waiter: UUID, seconds: float
) -> None:
    """Stores that no client of a process waits for these answers any more.

    Those that have begun continue for so long. A whole transaction, in one round trip.
    """
    values = {**_keys(answers), "waiter": waiter, "seconds": seconds}
    await tx.pipeline((*_LAZILY_BY_KEY, _LEAVE), values)


async def want(
    tx: Transaction, key: AnswerKey, *, waiter: UUID, seconds: float, resumes: bool
) -> None:
    """Stores that a pending answer is wanted for so long.

    `resumes`: a client of this process waits for it from now on, even if it was abandoned.
    """
    values = {
        **_keys([key]),
        "waiter": waiter,
        "seconds": seconds,
        "statuses": ["pending", "abandoned"] if resumes else ["pending"],
        "takes_over": resumes,
    }
    await tx.execute(_WANT, values)


async def given_up(tx: Transaction, answers: Collection[AnswerKey]) -> dict[UUID, str]:
    """Returns which of the answers are cancelled or abandoned, and abandons unwanted ones.

    A whole transaction, and a second one to abandon, in a round trip each.
    """
    found = {row[0]: row[1] for row in await tx.fetch(_GIVEN_UP, _keys(answers))}
    expired = [key for key in answers if found.get(key[1]) == "pending"]
    if expired:
        gone = await tx.fetch(_ABANDON, {**_keys(expired), "cause": ABANDONED})
        found.update((row[0], "abandoned") for row in gone)
    return {answer_id: status for answer_id, status in found.items() if status != "pending"}


async def put_aside(tx: Transaction, key: AnswerKey) -> bool:
    """Defers an answer until it may be abandoned; False when a client wants it again."""
    return bool(await tx.fetch(_PUT_ASIDE, {"session": key[0], "answer": key[1]}))


async def abandon(tx: Transaction, key: AnswerKey) -> bool:
    """Abandons an unwanted answer; False when a client wants it again."""
    return bool(await tx.fetch(_ABANDON, {**_keys([key]), "cause": ABANDONED}))
