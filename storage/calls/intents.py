"""Intents: calls that are about to be made or under way, and who may make them.

An intent is there from before a call until its outcome is stored. Whoever holds its lease
makes the call; everybody else waits for the outcome, or until the lease has run out.
They begin, are renewed and end in `storage.calls.call_ledger`.
"""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import bindparam, delete, func, select, tuple_

from storage.engine.clocks import interval
from storage.engine.database import Transaction
from storage.engine.ready import Ready
from storage.tables import intent

#: An intent whose lease ended so long ago is nobody's any more. Far longer than a reply
#: that waits for the database to come back.
DEAD_SECONDS = 3600


async def forget(tx: Transaction, session_key: UUID) -> None:
    """Removes a session's intents of executors that died, and whose call nobody made again.

    One that somebody takes over just now is left alone.
    """
    await tx.execute(_FORGET, {"session": session_key})


def oldest_lease(session_key: Any) -> Any:
    """Returns SQL for the end of the lease of a session that ran out first; NULL: none."""
    return (
        select(func.min(intent.c.lease_until))
        .where(intent.c.session_key == session_key)
        .scalar_subquery()
    )


def may_be_dead(oldest: datetime | None) -> bool:
    """Whether a session may have intents that `forget` removes, by this machine's clock."""
    if oldest is None:
        return False
    return oldest < datetime.now(UTC) - timedelta(seconds=DEAD_SECONDS)


_DEAD = (
    select(intent.c.session_key, intent.c.key)
    .where(
        intent.c.session_key == bindparam("session"),
        intent.c.lease_until < func.now() - interval(DEAD_SECONDS),
    )
    # Several workers of a session do this at once; none waits for another.
    .with_for_update(skip_locked=True)
)
_FORGET = Ready(delete(intent).where(tuple_(intent.c.session_key, intent.c.key).in_(_DEAD)))
