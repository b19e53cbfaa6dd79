"""Reports how much is stored of a session, or of a tenant."""

from collections.abc import Mapping
from uuid import UUID

from service.domain.operations.storage import StorageKind, StoredSize
from service.domain.values.tenancy import session_key
from service.usecases.log.lookup import session_not_found
from storage.engine.database import Database
from storage.log import sessions
from storage.operations import sizes


class StorageUsage:
    """Reads sizes, in one server process."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def sizes(self, tenant_id: UUID, session: str) -> Mapping[StorageKind, StoredSize]:
        """Returns the sizes of a session; of all of the tenant if it is empty. Raises NotFound."""
        async with self._database.transaction(tenant_id, name="sizes") as tx:
            if not session:
                return await sizes.tenant_sizes(tx)
            key = session_key(tenant_id, session)
            if await sessions.get(tx, key) is None:
                raise session_not_found(session)
            return await sizes.session_sizes(tx, key)
