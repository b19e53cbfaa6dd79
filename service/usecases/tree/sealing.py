"""Seals trees."""

from uuid import UUID

from service.domain.tree.spec import TreeSpec
from service.usecases.log.idempotency import store_result
from service.usecases.log.lookup import (
    find_memory,
    item_key,
    missing,
    refuse_other_kind,
    session_not_found,
)
from service.usecases.memories.long_operations import FoundOperation, request_seal
from service.usecases.memories.memories import Memories
from storage.engine.database import Database
from storage.log import sessions
from storage.memories import revisions


class Sealer:
    """Requests that trees are sealed."""

    def __init__(self, database: Database, memories: Memories) -> None:
        self._database = database
        self._memories = memories

    async def seal(self, tenant_id: UUID, session: str, name: str) -> FoundOperation:
        """Seals a tree once everything that is in the log now is in it.

        A second call changes nothing. Raises NotFound, FailedPrecondition (no tree).
        """
        async with self._database.transaction(tenant_id, name="trees") as tx:
            stored = await find_memory(tx, session, name, TreeSpec.kind)
            # In the order in which a step locks them.
            held_session = await sessions.lock_head(tx, stored.session_key)
            if held_session is None:
                raise session_not_found(session)
            held = await revisions.lock(tx, *item_key(stored))
            if held is None:
                raise await missing(tx, session, name)
            refuse_other_kind(name, held.spec, TreeSpec.kind)
            operation = await request_seal(tx, held, name, goal=held_session.head)
            stored = await find_memory(tx, session, name, TreeSpec.kind)
            await store_result(tx, operation)
        self._memories.wake(tenant_id, stored)
        return operation
