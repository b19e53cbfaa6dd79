"""Removes dead intents.

An intent exists from before a call until its outcome is stored. The holder of its lease makes the
call; others wait for the outcome, or until the lease expires. `storage.calls.call_ledger` creates,
renews and ends them.
"""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import bindparam, delete, func, select, tuple_

from storage.engine.clocks import interval
from storage.engine.database import Transaction
from storage.engine.ready import Ready
from storage.tables import intent

#: An intent is dead so long after its lease has expired, in seconds. Far longer than a reply waits
#: for the database to return.
DEAD_SECONDS = 3600


async def forget(tx: Transaction, session_key: UUID) -> None:
    """Removes a session's dead intents: those of executors that died and of calls not made again.

    Leaves alone one that another executor is taking over.
    """
    await tx.execute(_FORGET, {"session": session_key})


def oldest_lease(session_key: Any) -> Any:
    """Returns SQL for the end of a session's oldest lease; NULL without one."""
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
