"""How far memories are: what those wait for who read, ask and watch."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from storage.engine.database import Transaction


class Progress(NamedTuple):
    """How far a memory is. A tuple, since thousands are compared each second."""

    revision: int
    applied_position: int
    #: Why it stalled; None while it is active.
    stall_cause: str | None
    #: First position it is stuck at; 0 while it is active.
    stall_position: int
    #: Why a budget holds it; None when it goes on.
    held_reason: str | None
    #: A tree is closed behind this position; None when nobody asked for that.
    seal_position: int | None = None
    #: There is nothing to do with what is in the log.
    is_idle: bool = False
    #: Why its model gives no reply for now; None when it is not put off by that.
    waiting_cause: str | None = None
    #: Another one is of another memory, of the same name.
    created_at: datetime | None = None
    #: A consolidation is wanted once everything up to here is read.
    consolidate_position: int | None = None


# Each memory by its key, whatever the planner thinks of their number: OFFSET 0 keeps it from
# joining them in any other way. Behind `ready_at` a memory is about to try again.
_READ = """
SELECT w.number, m.revision, m.applied_position, d.cause, coalesce(d.from_position + 1, 0),
    CASE WHEN m.ready_at > now() THEN m.held_reason END, m.seal_position,
    NOT m.has_work OR m.resting, CASE WHEN m.ready_at > now() THEN m.waiting_cause END,
    m.created_at, m.consolidate_position
FROM unnest(%(sessions)s::uuid[], %(memories)s::uuid[]) WITH ORDINALITY
    AS w (session_key, memory_id, number)
CROSS JOIN LATERAL (
    SELECT * FROM memory
    WHERE session_key = w.session_key AND memory_id = w.memory_id
    OFFSET 0
) AS m
LEFT JOIN LATERAL (
    SELECT cause, from_position FROM dead_letter
    WHERE session_key = w.session_key AND memory_id = w.memory_id AND resolution IS NULL
    OFFSET 0
) AS d ON true
"""


async def read_progress(
    tx: Transaction, wanted: Sequence[tuple[UUID, UUID]]
) -> dict[UUID, Progress]:
    """How far each of the memories (session_key, memory_id) is, by its id; one round trip."""
    values = {
        "sessions": _array(key for key, _ in wanted),
        "memories": _array(memory_id for _, memory_id in wanted),
    }
    # The plan is not kept: one that was made for few rows would be used for many.
    rows: list[Any] = await tx.fetch(_READ, values, prepare=False)
    return {wanted[row[0] - 1][1]: Progress(*row[1:]) for row in rows}


def _array(keys: Iterable[UUID]) -> str:
    # As PostgreSQL writes it: the driver takes several times as long for a list.
    return f"{{{','.join(key.hex for key in keys)}}}"
