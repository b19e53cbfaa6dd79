"""Usage: what a session's or a memory's model calls came to."""

from collections.abc import Sequence
from uuid import UUID

from service.domain.values.tenancy import memory_id, session_key
from service.usecases.log.lookup import memory_not_found, session_not_found
from storage.calls import calls
from storage.calls.calls import UsageLine
from storage.engine.database import Database
from storage.log import sessions
from storage.memories import memories


async def read(
    database: Database, tenant_id: UUID, session: str, memory: str | None
) -> Sequence[UsageLine]:
    """Calls by purpose and model. Raises NotFound."""
    key = session_key(tenant_id, session)
    identity = None if memory is None else memory_id(key, memory)
    async with database.transaction(tenant_id, name="costs") as tx:
        if await sessions.get(tx, key) is None:
            raise session_not_found(session)
        if identity is not None and await memories.get(tx, key, identity) is None:
            raise memory_not_found(session, memory or "")
        return await calls.usage(tx, key, memory_id=identity)
