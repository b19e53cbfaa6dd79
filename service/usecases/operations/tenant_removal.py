"""Removes deleted tenants in the background, in one worker process."""

import structlog

from service.domain.values.tenancy import DEFAULT_TENANT
from storage.engine.database import Database
from storage.operations import tenant_removal

_log = structlog.get_logger("palimpsest")

#: How often a worker looks for deleted tenants.
LOOK_SECONDS = 5.0
#: Sessions that one transaction hides, and tombstones that one removes.
SESSIONS, TOMBSTONES = 20, 2000


class TenantRemover:
    """Removes what deleted tenants have; several workers may do so at once."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def look(self) -> None:
        """Continues all removals of tenants that are under way. Raises StorageError."""
        async with self._database.sweeping(name="remove-tenant") as tx:
            found = await tenant_removal.pending(tx)
        for tenant_id, erasure_id in found:
            assert tenant_id != DEFAULT_TENANT, "it cannot be deleted"
            hidden = SESSIONS
            while hidden == SESSIONS:
                async with self._database.transaction(tenant_id, name="remove-tenant") as tx:
                    hidden = await tenant_removal.hide_sessions(tx, SESSIONS)
            async with self._database.transaction(tenant_id, name="remove-tenant") as tx:
                if await tenant_removal.remove_rest(tx, erasure_id, TOMBSTONES):
                    _log.info("a deleted tenant is removed", erasure=str(erasure_id))
