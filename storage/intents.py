"""Intents: calls that are about to be made or under way, and who may make them.

An intent is there from before a call until its outcome is stored. Whoever holds its lease
makes the call; everybody else waits for the outcome, or until the lease has run out.
"""

from typing import Any
from uuid import UUID

from sqlalchemy import BigInteger, and_, cast, delete, func, select, tuple_, update
from sqlalchemy.dialects.postgresql import insert

from service.domain.flows import ModelReply
from service.domain.ledger import Busy, CallScope, Lease, Reservation
from storage import calls
from storage.database import Transaction
from storage.tables import intent

#: An intent whose lease ended so long ago is nobody's any more. Far longer than a reply
#: that waits for the database to come back.
DEAD_SECONDS = 3600


async def begin(
    tx: Transaction, scope: CallScope, key: bytes, wanted: Reservation, lease_seconds: float
) -> ModelReply | Busy | Lease:
    """Takes the right to make a call, unless it is made already or another has it."""
    until = func.now() + _seconds(lease_seconds)
    reserved = {
        "deployment": wanted.deployment,
        "reserved_tokens": wanted.tokens,
        "reserved_micro_usd": wanted.micro_usd or 0,
    }
    taken = (
        insert(intent)
        .values(
            session_key=scope.session_key,
            key=key,
            tenant_id=scope.tenant_id,
            memory_id=scope.memory_id,
            purpose=wanted.purpose.value,
            model=wanted.model,
            # By the clock, not from 1 on: an intent that ended may begin again, and who
            # held it before must not take the new one's lease for its own.
            fence=_now_microseconds(),
            lease_until=until,
            **reserved,
        )
        .on_conflict_do_update(
            index_elements=["session_key", "key"],
            set_={"fence": intent.c.fence + 1, "lease_until": until, **reserved},
            where=intent.c.lease_until <= func.now(),
        )
        .returning(intent.c.fence)
    )
    fence = (await tx.connection.execute(taken)).scalar_one_or_none()
    # Only behind the row above: an outcome that is stored together with the row's removal
    # is either seen here, or the row was still there.
    reply = await calls.find_reply(tx, scope.session_key, key)
    if reply is not None:
        if fence is not None:
            await _remove(tx, scope.session_key, key, fence)
        return reply
    if fence is not None:
        return Lease(fence=fence)
    left = select(func.extract("epoch", intent.c.lease_until - func.clock_timestamp())).where(
        _is(scope.session_key, key)
    )
    seconds = (await tx.connection.execute(left)).scalar_one_or_none()
    return Busy(seconds=max(float(seconds or 0.0), 0.0))


async def renew(
    tx: Transaction, scope: CallScope, key: bytes, lease: Lease, lease_seconds: float
) -> bool:
    """Lets the lease hold from now on; False when somebody else has taken it."""
    longer = (
        update(intent)
        .where(_is(scope.session_key, key), intent.c.fence == lease.fence)
        .values(lease_until=func.now() + _seconds(lease_seconds))
    )
    return (await tx.connection.execute(longer)).rowcount == 1


async def end(tx: Transaction, scope: CallScope, key: bytes, lease: Lease) -> None:
    """Gives the right up: the outcome is stored, or the call was not made.

    Does nothing when somebody else has it by now.
    """
    await _remove(tx, scope.session_key, key, lease.fence)


async def forget(tx: Transaction, session_key: UUID) -> None:
    """Removes a session's intents of callers that died, and whose call nobody made again.

    One that somebody takes over just now is left alone.
    """
    dead = (
        select(intent.c.session_key, intent.c.key)
        .where(
            intent.c.session_key == session_key,
            intent.c.lease_until < func.now() - _seconds(DEAD_SECONDS),
        )
        # Several workers of a session do this at once; none waits for another.
        .with_for_update(skip_locked=True)
    )
    gone = delete(intent).where(tuple_(intent.c.session_key, intent.c.key).in_(dead))
    await tx.connection.execute(gone)


async def _remove(tx: Transaction, session_key: UUID, key: bytes, fence: int) -> None:
    gone = delete(intent).where(_is(session_key, key), intent.c.fence == fence)
    await tx.connection.execute(gone)


def _is(session_key: UUID, key: bytes) -> Any:
    return and_(intent.c.session_key == session_key, intent.c.key == key)


def _now_microseconds() -> Any:
    return cast(func.extract("epoch", func.clock_timestamp()) * 1_000_000, BigInteger)


def _seconds(seconds: float) -> Any:
    return func.make_interval(0, 0, 0, 0, 0, 0, seconds)
