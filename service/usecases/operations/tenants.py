"""Reads the tenants of a deployment, for commands that work on more than one."""

from collections.abc import AsyncGenerator
from uuid import UUID

from storage.engine.database import Database
from storage.operations import tenants
from storage.operations.tenants import Tenant

#: Tenants of one page of the list.
PAGE_TENANTS = 200


class NoTenant(Exception):
    """There is no such tenant, as the message says."""


async def all_tenants(database: Database) -> AsyncGenerator[Tenant]:
    """Yields every tenant, by id. Raises StorageError."""
    after = UUID(int=0)
    while True:
        async with database.sweeping(name="tenants") as tx:
            page = await tenants.list_after(tx, after, PAGE_TENANTS)
        for one in page:
            yield one
        if len(page) < PAGE_TENANTS:
            return
        after = page[-1].tenant_id


async def the_tenant(database: Database, wanted: str) -> Tenant:
    """Returns the tenant of that name or id. Raises NoTenant, StorageError."""
    async with database.sweeping(name="tenants") as tx:
        found = await tenants.find(tx, wanted)
    if found is None:
        raise NoTenant(f"there is no tenant {wanted!r}")
    return found
