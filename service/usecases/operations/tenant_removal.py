"""Records the deletion of tenants, and removes them in the background."""

from dataclasses import replace

import structlog

from service.domain.access.audit import AuditAction, AuditEntry, Detail
from service.domain.log.erasures import Erasure
from service.domain.values.tenancy import DEFAULT_TENANT, SYSTEM_TENANT
from storage.access import audit
from storage.engine.database import OF_TENANT, Database, Transaction
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


async def record_deletion(tx: Transaction, name: str, made: Erasure) -> None:
    """Records the deletion of the transaction's tenant: in its audit log, and the system tenant's.

    The latter proves it to operators who do not know the id of the tenant any more.
    """
    details: dict[str, Detail] = {
        "erasure": str(made.erasure_id),
        "tenant_uid": str(made.tenant_id),
    }
    if made.is_replayed:
        details["replayed"] = True
    entry = AuditEntry(action=AuditAction.TENANT_DELETE, target=name, details=details)
    await audit.record(tx, entry, principal=made.principal)
    await tx.execute(OF_TENANT, (str(SYSTEM_TENANT),))
    await audit.record(replace(tx, tenant_id=SYSTEM_TENANT), entry, principal=made.principal)
    await tx.execute(OF_TENANT, (str(tx.tenant_id),))
