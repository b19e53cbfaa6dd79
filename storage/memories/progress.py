"""Reads the progress of memories, for which reads, questions and watches wait."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from storage.engine.database import Transaction


class Progress(NamedTuple):
    """The progress of a memory. A tuple, since thousands are compared each second."""

    revision: int
    applied_position: int
    #: Why it stalled; None while it is active.
    stall_cause: str | None
    #: First position it is stuck at; 0 while it is active.
    stall_position: int
    #: Why a budget does not allow its next call; None when one is allowed.
    held_reason: str | None
    #: A tree is closed after this position; None when that was not requested.
    seal_position: int | None = None
    #: There is nothing to do with what is in the log.
    is_idle: bool = False
    #: Why its model does not reply now; None when it does not wait for that.
    waiting_cause: str | None = None
    #: Differs for a later memory of the same name.
    created_at: datetime | None = None
    #: A consolidation is wanted once everything up to here is read.
    consolidate_position: int | None = None


# Each memory by its key, whatever number the planner expects: OFFSET 0 prevents other joins. After
# `ready_at` a memory is about to try again.
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
    """Returns the progress of memories (session_key, memory_id) by their ids; one round trip."""
    values = {
        "sessions": _array(key for key, _ in wanted),
        "memories": _array(memory_id for _, memory_id in wanted),
    }
    # The plan is not kept: one for few rows would be used for many.
    rows: list[Any] = await tx.fetch(_READ, values, prepare=False)
    return {wanted[row[0] - 1][1]: Progress(*row[1:]) for row in rows}


def _array(keys: Iterable[UUID]) -> str:
    # In PostgreSQL's own form: the driver takes several times as long for a list.
    return f"{{{','.join(key.hex for key in keys)}}}"
