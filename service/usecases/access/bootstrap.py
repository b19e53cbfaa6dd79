"""Creates a key without one, with the rights of the database."""

from service.domain.access.keys import NewKey, StoredTenant, tenant_not_found
from service.usecases.access.keys import Issued, issue
from storage.access import tenants
from storage.engine.database import Database

#: The principal of what is done with the database's own rights.
OPERATOR = "operator"


async def create_key(
    database: Database, tenant: str, new: NewKey, *, max_keys: int
) -> tuple[StoredTenant, Issued]:
    """Creates a key of a tenant. Raises NotFound, Exhausted, StorageError."""
    async with database.sweeping(name="tenants") as tx:
        target = await tenants.find(tx, tenant)
    if target is None:
        raise tenant_not_found(tenant)
    async with database.transaction(target.tenant_id, name="keys") as tx:
        return target, await issue(tx, new, by=OPERATOR, max_keys=max_keys)
