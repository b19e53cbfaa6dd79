"""Ends a memory's wait: by flushes, waiting reads, and requests for a consolidation."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import Integer, Uuid, and_, bindparam, case, cast, func, or_, select, update

from service.domain.log.chunks import ChunkKind
from service.domain.prism.spec import SERVICE_LINGER_MS
from storage.engine.claims import Claim, change_locked
from storage.engine.clocks import CLOCK
from storage.engine.database import Transaction
from storage.engine.ready import Ready
from storage.memories.revision_statements import has_work
from storage.tables import chunk, memory


def ready_unless_failing() -> Any:
    """Returns SQL for when a requested memory is ready: now, as a rule."""
    # A memory that failed, or is over budget, keeps waiting for its next try.
    waits = or_(
        memory.c.attempts > 0,
        memory.c.held_reason.is_not(None),
        memory.c.waiting_cause.is_not(None),
    )
    return case((waits, memory.c.ready_at), else_=CLOCK.c.at)


_MEMORY = bindparam("memory", type_=Uuid)
#: All memories of the session, or the one that is named.
_WHICH = (
    memory.c.session_key == bindparam("session"),
    or_(_MEMORY.is_(None), memory.c.memory_id == _MEMORY),
)

_FLUSH = Ready(
    update(memory)
    .where(*_WHICH, memory.c.flush_position < bindparam("upto"))
    .values(
        flush_position=bindparam("upto"),
        ready_at=ready_unless_failing(),
        resting=False,
        # A memory whose readers have the whole log may be idle with a lag.
        has_work=or_(
            memory.c.has_work,
            and_(memory.c.status != "sealed", memory.c.applied_position < bindparam("upto")),
        ),
    )
    .returning(memory.c.memory_id, memory.c.has_work, memory.c.status)
)


async def flush(
    tx: Transaction, session_key: UUID, memory_id: UUID | None, position: int
) -> Sequence[UUID]:
    """Ends the wait for more chunks up to `position`; returns the memories that have work.

    None means all memories of the session.
    """
    values = {"session": session_key, "memory": memory_id, "upto": position}
    rows = await tx.fetch(_FLUSH, values)
    return [found for found, has_work, status in rows if has_work and status == "active"]


# The stored spec says what waits: by the creator's linger, or by the service's, which is for
# messages. A waiting step reads the whole rest, so `upto` is one of its messages. Other memories
# are not written.
_LINGER_MS = func.coalesce(cast(memory.c.spec["linger_ms"].astext, Integer), 0)
_IS_MESSAGE = (
    select(chunk.c.position)
    .where(
        chunk.c.session_key == bindparam("session"),
        chunk.c.position == bindparam("upto"),
        chunk.c.kind == ChunkKind.MESSAGE.value,
    )
    .exists()
)
_END_WAIT = Ready(
    update(memory)
    .where(
        *_WHICH,
        memory.c.status == "active",
        has_work(),
        memory.c.flush_position < bindparam("upto"),
        memory.c.applied_position < bindparam("upto"),
        or_(_LINGER_MS > 0, and_(_LINGER_MS == SERVICE_LINGER_MS, _IS_MESSAGE)),
    )
    .values(flush_position=bindparam("upto"), ready_at=ready_unless_failing(), resting=False)
    .returning(memory.c.memory_id)
)


async def end_wait(
    tx: Transaction, session_key: UUID, memory_id: UUID | None, position: int
) -> Sequence[UUID]:
    """Does as `flush`, but writes only to memories whose next step waits, or may begin to.

    For reads: a second read of the same position writes nothing. A worker that is about to defer
    the step finds the position moved, as with a flush.
    """
    values = {"session": session_key, "memory": memory_id, "upto": position}
    return [found for (found,) in await tx.fetch(_END_WAIT, values)]


async def want_consolidation(tx: Transaction, held: Claim, position: int) -> None:
    """Requests a consolidation once everything up to `position` is read, without linger.

    The caller has the memory from `lock`.
    """
    await change_locked(
        tx,
        held,
        consolidate_position=position,
        has_work=True,
        flush_position=func.greatest(memory.c.flush_position, position),
        ready_at=ready_unless_failing(),
    )


async def cancel_consolidation(tx: Transaction, held: Claim) -> None:
    """Withdraws what `want_consolidation` requested. The caller has the memory from `lock`."""
    # A worker that makes it has its result refused.
    await change_locked(tx, held, consolidate_position=None, epoch=memory.c.epoch + 1)
    tx.changed.add(held.memory_id)
