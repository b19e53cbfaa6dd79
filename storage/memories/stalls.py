"""Giving up: dead letters, stalled memories, and letting them go on."""

from collections.abc import Sequence
from uuid import UUID, uuid4

from sqlalchemy import func, insert, select, tuple_, update

from storage.engine.claims import Claim, Fenced
from storage.engine.database import Transaction
from storage.tables import dead_letter, memory


async def add_dead_letter(
    tx: Transaction,
    held: Claim,
    *,
    to_position: int,
    cause: str,
    resolution: str | None,
    ambiguous_model: str | None = None,
) -> None:
    """Records that a step failed for good; `resolution` is None or 'skipped'.

    `ambiguous_model`: the model that refused it for what may turn out to be its own fault.
    """
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
            ambiguous_model=ambiguous_model,
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
    tx.changed.add(held.memory_id)


async def retry_some(
    tx: Transaction, session_key: UUID | None, limit: int
) -> Sequence[tuple[UUID, UUID]]:
    """Lets up to `limit` stalled memories of a session, or of all, go on; their keys.

    Leaves out what another transaction has locked.
    """
    open_letter = (
        select(dead_letter.c.session_key, dead_letter.c.memory_id)
        .where(dead_letter.c.resolution.is_(None))
        .where(*(() if session_key is None else (dead_letter.c.session_key == session_key,)))
    )
    stalled = (
        select(memory.c.session_key, memory.c.memory_id)
        .where(
            tuple_(memory.c.session_key, memory.c.memory_id).in_(open_letter),
            memory.c.status == "stalled",
        )
        .limit(limit)
        .with_for_update(skip_locked=True)
    )
    keys = [(key, identity) for key, identity in await tx.connection.execute(stalled)]
    await _retry(tx, keys)
    return keys


async def retry(tx: Transaction, session_key: UUID, memory_id: UUID) -> bool:
    """Makes a stalled memory active; returns False when it was not stalled."""
    return await _retry(tx, [(session_key, memory_id)]) == 1


async def _retry(tx: Transaction, keys: Sequence[tuple[UUID, UUID]]) -> int:
    """Makes those of the memories active that are stalled; returns how many."""
    woken = (
        update(memory)
        .where(
            tuple_(memory.c.session_key, memory.c.memory_id).in_(keys),
            memory.c.status == "stalled",
        )
        .values(status="active", attempts=0, ready_at=func.now(), has_work=True)
    )
    number = (await tx.connection.execute(woken)).rowcount
    if number:
        tx.changed.update(memory_id for _, memory_id in keys)
        await tx.connection.execute(
            update(dead_letter)
            .where(
                tuple_(dead_letter.c.session_key, dead_letter.c.memory_id).in_(keys),
                dead_letter.c.resolution.is_(None),
            )
            .values(resolution="retried")
        )
    return number
