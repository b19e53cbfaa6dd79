"""Stores dead letters, and stalls and retries memories."""

from collections.abc import Sequence
from uuid import UUID, uuid4

from sqlalchemy import func, insert, select, tuple_, update

from storage.engine.claims import Claim, change
from storage.engine.database import Transaction
from storage.log.sessions import lock_in_order
from storage.tables import dead_letter, memory, session


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

    `ambiguous_model`: the model that refused it for what may be its own fault.
    """
    await tx.execute(
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

    Raises Fenced when the claim is lost, or the memory was changed by hand: then another prompt
    would be sent, about which the failure says nothing.
    """
    await change(tx, held, memory.c.revision == held.revision, status="stalled")


async def retry_some(
    tx: Transaction, session_key: UUID | None, limit: int
) -> tuple[Sequence[tuple[UUID, UUID]], bool]:
    """Makes up to `limit` stalled memories of a session, or of all, active.

    Returns their keys, and whether there may be more. Waits for locked rows, and raises Busy when
    that takes too long.
    """
    open_letter = (
        select(dead_letter.c.session_key, dead_letter.c.memory_id)
        .where(dead_letter.c.resolution.is_(None))
        .where(*(() if session_key is None else (dead_letter.c.session_key == session_key,)))
    )
    names = (memory.c.session_key, memory.c.memory_id)
    stalled = (
        select(*names)
        .where(tuple_(*names).in_(open_letter), memory.c.status == "stalled")
        .order_by(*names)
        .limit(limit)
    )
    keys = [(key, identity) for key, identity in await tx.fetch(stalled)]
    await lock_in_order(tx, session.c.session_key.in_({key for key, _ in keys}))
    return await _retry(tx, keys), len(keys) == limit


async def retry(tx: Transaction, session_key: UUID, memory_id: UUID) -> bool:
    """Makes a stalled memory active; returns False when it was not stalled."""
    return bool(await _retry(tx, [(session_key, memory_id)]))


async def _retry(tx: Transaction, keys: Sequence[tuple[UUID, UUID]]) -> Sequence[tuple[UUID, UUID]]:
    """Makes the stalled ones of these memories active; returns their keys."""
    woken = (
        update(memory)
        .where(
            tuple_(memory.c.session_key, memory.c.memory_id).in_(keys),
            memory.c.status == "stalled",
        )
        .values(status="active", attempts=0, ready_at=func.now(), has_work=True)
        .returning(memory.c.session_key, memory.c.memory_id)
    )
    found = [(key, identity) for key, identity in await tx.fetch(woken)]
    if found:
        tx.changed.update(memory_id for _, memory_id in found)
        await tx.execute(
            update(dead_letter)
            .where(
                tuple_(dead_letter.c.session_key, dead_letter.c.memory_id).in_(found),
                dead_letter.c.resolution.is_(None),
            )
            .values(resolution="retried")
        )
    return found
