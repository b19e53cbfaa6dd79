"""Trees as they are built: what becomes of their rows."""

from sqlalchemy import update

from storage.database import Transaction
from storage.revisions import Claim, ready_unless_failing
from storage.tables import memory


async def want_seal(tx: Transaction, held: Claim, position: int) -> bool:
    """Asks for a tree to be closed once everything up to `position` is in it.

    False, and nothing changed, when somebody asked before. The caller has the memory from
    `revisions.lock`, and the session's head from `sessions.lock_head`.
    """
    statement = (
        update(memory)
        .where(
            memory.c.session_key == held.session_key,
            memory.c.memory_id == held.memory_id,
            memory.c.seal_position.is_(None),
        )
        .values(seal_position=position, has_work=True, ready_at=ready_unless_failing())
    )
    return (await tx.connection.execute(statement)).rowcount == 1
