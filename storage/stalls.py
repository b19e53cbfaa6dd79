"""Giving up: dead letters, stalled memories, and letting them go on."""

from uuid import UUID, uuid4

from sqlalchemy import func, insert, update

from storage.database import Transaction
from storage.revisions import Claim, Fenced
from storage.tables import dead_letter, memory


async def add_dead_letter(
    tx: Transaction, held: Claim, *, to_position: int, cause: str, resolution: str | None
) -> None:
    """Records that a step failed for good; `resolution` is None or 'skipped'."""
    await tx.connection.execute(
        insert(dead_letter).values(
            session_key=held.session_key,
            memory_id=held.memory_id,
            letter_id=uuid4(),
            tenant_id=tx.tenant_id,
            from_position=held.applied_position,
            to_position=to_position,
            attempts=held.attempts + 1,
            cause=cause,
            resolution=resolution,
        )
    )


async def stall(tx: Transaction, held: Claim) -> None:
    """Stops the memory until `retry`.

    Raises Fenced when it is no longer held, or was changed by hand: then another prompt
    would be sent, and what failed says nothing of that one.
    """
    stopped = (
        update(memory)
        .where(
            memory.c.session_key == held.session_key,
            memory.c.memory_id == held.memory_id,
            memory.c.epoch == held.epoch,
            memory.c.revision == held.revision,
            memory.c.status == "active",
        )
        .values(status="stalled")
    )
    if (await tx.connection.execute(stopped)).rowcount != 1:
        raise Fenced


async def retry(tx: Transaction, session_key: UUID, memory_id: UUID) -> bool:
    """Lets a stalled memory go on; False when it was not stalled."""
    woken = (
        update(memory)
        .where(
            memory.c.session_key == session_key,
            memory.c.memory_id == memory_id,
            memory.c.status == "stalled",
        )
        .values(status="active", attempts=0, ready_at=func.now(), has_work=True)
    )
    if (await tx.connection.execute(woken)).rowcount == 0:
        return False
    await tx.connection.execute(
        update(dead_letter)
        .where(
            dead_letter.c.session_key == session_key,
            dead_letter.c.memory_id == memory_id,
            dead_letter.c.resolution.is_(None),
        )
        .values(resolution="retried")
    )
    return True
