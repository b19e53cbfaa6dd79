"""Removes what policies of retention say, in batches.

Each function is one batch in a transaction of its own; what it did not reach is found again by the
next one, in this pass or another. Deletions are allowed by a row in `removal` that the transaction
adds and removes, as of any removal.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from service.domain.log.erasures import ErasureRequest
from service.domain.operations.retention import Retention
from storage.engine.database import Transaction
from storage.log import deleting
from storage.operations.chunk_retention import READ_BY_ALL
from storage.prism import thinning

#: The reason of erasures that a policy demands.
REASON = "retention"
#: The fields by which a session itself expires.
SESSION_NAMES = ("idle_session_days", "session_days")


@dataclass(frozen=True, kw_only=True, slots=True)
class RetainedSession:
    """A session with what applies to it."""

    session_key: UUID
    name: str
    #: Its own policy.
    retention: Retention


_PAGE = """
SELECT session_key, name, retention FROM session
WHERE tenant_id = %(tenant)s AND name COLLATE "C" > %(after)s AND name > '' {which}
ORDER BY name COLLATE "C" LIMIT %(limit)s
"""
_ALL = _PAGE.format(which="")
_OWN = _PAGE.format(which="AND retention <> '{}'::jsonb")


async def page_sessions(
    tx: Transaction, after_name: str, limit: int, *, all_sessions: bool
) -> Sequence[RetainedSession]:
    """Returns the next sessions by the bytes of their names: all, or those with a policy."""
    values = {"tenant": tx.tenant_id, "after": after_name, "limit": limit}
    rows = await tx.fetch(_ALL if all_sessions else _OWN, values)
    return [
        RetainedSession(session_key=key, name=name, retention=Retention.of(stored))
        for key, name, stored in rows
    ]


#: Whether something was older than so many days; NULL days are never over.
_OVER = "< now() - make_interval(days => w.{name})"
#: When a session was last in use: the last chunk, question or change of a memory.
_USED = """greatest(s.created_at,
    (SELECT c.created_at FROM chunk c WHERE c.session_key = s.session_key AND c.position = s.head),
    (SELECT max(a.created_at) FROM answer a WHERE a.session_key = s.session_key),
    (SELECT max(r.created_at) FROM memory m JOIN revision r
        ON r.session_key = m.session_key AND r.memory_id = m.memory_id AND r.revision = m.revision
        WHERE m.session_key = s.session_key))"""
_IS_DUE = {
    # The rest is read only for sessions that are old enough.
    "idle_session_days": f"s.created_at {_OVER} AND {_USED} {_OVER}",
    "session_days": f"s.created_at {_OVER}",
    "call_days": f"""EXISTS (SELECT FROM call c WHERE c.session_key = s.session_key
        AND octet_length(coalesce(c.reply, c.failure)) > 0 AND c.created_at {_OVER})""",
    "answer_days": f"""EXISTS (SELECT FROM answer a WHERE a.session_key = s.session_key
        AND a.created_at {_OVER} AND a.status <> 'pending')""",
    "trajectory_days": f"""EXISTS (SELECT FROM answer a WHERE a.session_key = s.session_key
        AND a.created_at {_OVER}
        AND a.created_at > coalesce(s.trajectories_expired_at, '-infinity'))""",
    "chunk_days": f"""EXISTS (SELECT FROM chunk c WHERE c.session_key = s.session_key
        AND c.position = s.expired_position + 1 AND c.created_at {_OVER}
        AND c.position <= {READ_BY_ALL})""",
    "history_days": "EXISTS (SELECT FROM memory m WHERE m.session_key = s.session_key AND "
    + thinning.MAY_THIN.format(days="w.{name}")
    + ")",
}
_FLAGS = ", ".join(f"({sql.format(name=name)}) IS TRUE AS {name}" for name, sql in _IS_DUE.items())
_WANTED = ", ".join(f"%({name})s::integer[]" for name in _IS_DUE)
_DUE = f"""
SELECT s.session_key, {_FLAGS}
FROM unnest(%(sessions)s::uuid[], {_WANTED}) AS w (session_key, {", ".join(_IS_DUE)})
JOIN session s ON s.session_key = w.session_key
"""  # noqa: S608 - all of it is ours


async def due(
    tx: Transaction, policies: Mapping[UUID, Mapping[str, int]]
) -> Mapping[UUID, Sequence[str]]:
    """Returns which fields of which sessions' policies have something to remove."""
    values: dict[str, object] = {"sessions": list(policies)}
    for name in _IS_DUE:
        values[name] = [one.get(name) for one in policies.values()]
    rows = await tx.fetch(_DUE, values, prepare=None)
    found = {
        key: [name for name, is_due in zip(_IS_DUE, flags, strict=True) if is_due]
        for key, *flags in rows
    }
    return {key: names for key, names in found.items() if names}


async def expire_session(tx: Transaction, session_key: UUID, policy: Mapping[str, int]) -> bool:
    """Deletes a session if it is still over, as a client does; returns whether it did."""
    if not await deleting.lock_session(tx, session_key):
        return False
    ends = {name: days for name, days in policy.items() if name in SESSION_NAMES}
    if session_key not in await due(tx, {session_key: ends}):
        return False
    return await deleting.delete_session(tx, session_key, ErasureRequest(reason=REASON))


_BLANK_CALLS = deleting.BLANK_CALLS.format(
    more="",
    which="""ctid = ANY(ARRAY(
    SELECT ctid FROM call WHERE session_key = %(session)s
        AND octet_length(coalesce(reply, failure)) > 0
        AND created_at < now() - make_interval(days => %(days)s::integer)
    ORDER BY created_at LIMIT %(limit)s))""",
)


async def expire_calls(tx: Transaction, session_key: UUID, days: int, limit: int) -> int:
    """Removes the texts of calls, whose figures stay; returns of how many."""
    values = {"session": session_key, "days": days, "limit": limit}
    return await _allowed(tx, _BLANK_CALLS, values)


async def _allowed(tx: Transaction, statement: str, values: Mapping[str, object]) -> int:
    """Runs a statement that only a removal may; returns how many rows it changed."""
    key = values["session"]
    assert isinstance(key, UUID), "each statement is about one session"
    await deleting.allow(tx, key)
    changed = await tx.execute(statement, values)
    await deleting.forbid(tx, key)
    return changed


_OLD_ANSWERS = """
SELECT answer_id FROM answer
WHERE session_key = %(session)s AND status <> 'pending'
    AND created_at < now() - make_interval(days => %(days)s::integer)
ORDER BY created_at, answer_id LIMIT %(limit)s
"""


async def expire_answers(
    tx: Transaction, session_key: UUID, days: int, limit: int, occasion: Callable[[UUID], str]
) -> int:
    """Removes answers with all that belongs to them, as a client does; returns how many.

    `occasion` names the calls of an answer.
    """
    values = {"session": session_key, "days": days, "limit": limit}
    rows = await tx.fetch(_OLD_ANSWERS, values)
    for (answer_id,) in rows:
        await deleting.delete_answer(tx, session_key, answer_id, occasion(answer_id))
    return len(rows)


#: Up to the first answer that is not complete, whose events are still read.
_UPTO = """
WITH old AS (
    SELECT a.created_at, a.status FROM answer a JOIN session s USING (session_key)
    WHERE a.session_key = %(session)s
        AND a.created_at > coalesce(s.trajectories_expired_at, '-infinity')
        AND a.created_at < now() - make_interval(days => %(days)s::integer)
    ORDER BY a.created_at LIMIT %(limit)s
)
SELECT max(created_at) AS upto, count(*) AS answers FROM old WHERE created_at < coalesce(
    (SELECT min(created_at) FROM old WHERE status = 'pending'), 'infinity')
"""
_REMOVE_EVENTS = """
DELETE FROM trajectory_event WHERE session_key = %(session)s AND answer_id IN (
    SELECT a.answer_id FROM answer a JOIN session s USING (session_key)
    WHERE a.session_key = %(session)s AND a.created_at <= %(upto)s
        AND a.created_at > coalesce(s.trajectories_expired_at, '-infinity'))
"""
_MOVE = "UPDATE session SET trajectories_expired_at = %(upto)s WHERE session_key = %(session)s"


async def expire_trajectories(tx: Transaction, session_key: UUID, days: int, limit: int) -> int:
    """Removes the trajectories of up to `limit` answers; returns of how many."""
    values: dict[str, object] = {"session": session_key, "days": days, "limit": limit}
    ((upto, answers),) = await tx.fetch(_UPTO, values)
    if answers:
        values["upto"] = upto
        await _allowed(tx, _REMOVE_EVENTS, values)
        await tx.execute(_MOVE, values)
    return int(answers)
