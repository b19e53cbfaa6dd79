"""Checks whether an idle state memory has something to do, and defers it until it has.

Every append wakes the state memories of its session, and most have nothing to do. Noticing that
costs two round trips, and no write that a client waits for.
"""

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from sqlalchemy import func, select

from service.domain.memories.specs import spec_from_json
from service.domain.state.spec import StateSpec
from service.domain.state.vectors import VectorLevels
from storage.engine.claims import Claim
from storage.engine.database import LAZILY, Transaction

# As `revision_statements.has_work` has it.
_LOOK = """
SELECT m.epoch, m.revision, m.applied_position, m.spec, m.attempts, m.flush_position,
    s.head, l.runs
FROM memory m
JOIN session s ON s.session_key = m.session_key
JOIN state_levels l ON l.session_key = m.session_key AND l.memory_id = m.memory_id
    AND l.revision = m.revision
WHERE m.session_key = %(session)s AND m.memory_id = %(memory)s AND m.kind = 'state'
    AND m.status = 'active' AND m.has_work::integer = 1 AND m.ready_at <= now()
"""

_LOCK_HEAD = "SELECT head FROM session WHERE session_key = %(session)s FOR SHARE"

_IDLE = """
UPDATE memory SET
    has_work = %(ready_at)s::timestamptz IS NOT NULL,
    ready_at = coalesce(%(ready_at)s::timestamptz, ready_at),
    resting = %(ready_at)s::timestamptz IS NOT NULL,
    -- Failed tries are over: a flush would mistake them for a pending retry.
    attempts = 0,
    held_reason = NULL,
    waiting_model = NULL,
    waiting_cause = NULL,
    wake_position = %(wake_position)s
WHERE session_key = %(session)s AND memory_id = %(memory)s
    AND epoch = %(epoch)s AND revision = %(revision)s AND status = 'active'
    AND flush_position = %(flush_position)s
    AND (SELECT head FROM session WHERE session_key = %(session)s) = %(position)s
RETURNING true
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class IdleStateMemory:
    """A state memory that a worker was woken for, without a claim."""

    held: Claim
    levels: VectorLevels
    #: The head of its session.
    head: int


async def look(tx: Transaction, session_key: UUID, memory_id: UUID) -> IdleStateMemory | None:
    """Returns what `revisions.claim` would return, in one round trip; None without work."""
    rows = await tx.fetch(_LOOK, {"session": session_key, "memory": memory_id})
    if not rows:
        return None
    epoch, revision, applied_position, spec, attempts, flush_position, head, runs = rows[0]
    held = Claim(
        tenant_id=tx.tenant_id,
        session_key=session_key,
        memory_id=memory_id,
        epoch=epoch,
        revision=revision,
        applied_position=applied_position,
        spec=spec_from_json(StateSpec.kind, spec, None),
        attempts=attempts,
        flush_position=flush_position,
    )
    return IdleStateMemory(held=held, levels=VectorLevels.from_json(runs), head=head)


async def leave(
    tx: Transaction,
    held: Claim,
    position: int,
    *,
    wake_position: int,
    ready_at: datetime | None = None,
) -> int | None:
    """Defers a memory whose steps up to `position` are not to be compressed yet.

    Until the log reaches `wake_position`, and with `ready_at` at most until that time of the
    database's clock. Returns None when it is idle. Else the session's head, without a change: the
    head is after `position`, or the memory was flushed, changed or claimed since `look`. A whole
    transaction, in one round trip.
    """
    values = {
        "session": held.session_key,
        "memory": held.memory_id,
        "epoch": held.epoch,
        "revision": held.revision,
        "flush_position": held.flush_position,
        "position": position,
        "wake_position": wake_position,
        "ready_at": ready_at,
    }
    # A crash of the server may lose it: then a worker checks once more.
    _, heads, is_idle = await tx.pipeline((LAZILY, _LOCK_HEAD, _IDLE), values)
    if is_idle:
        tx.changed.add(held.memory_id)
    return None if is_idle else int(heads[0][0])


async def clock(tx: Transaction) -> datetime:
    """Returns when the transaction began, by the database's clock."""
    began: datetime = (await tx.fetch(select(func.now())))[0][0]
    return began
