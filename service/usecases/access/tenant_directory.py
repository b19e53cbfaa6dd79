"""Finds the tenants that tokens and certificates name."""

from collections.abc import Mapping, Sequence

from service.domain.access.identity import Identity, Scope
from service.domain.access.keys import StoredTenant
from service.domain.values.errors import Unauthenticated
from service.domain.values.reasons import Reason
from service.domain.values.tenancy import SYSTEM_TENANT
from service.usecases.access.key_verifier import suspended
from service.usecases.access.lookups import CachedLookups
from storage.access import tenants
from storage.engine.database import Database
from storage.engine.errors import StorageError

#: Characters of a tenant's name that are looked up.
MAX_NAME = 256


class TenantDirectory:
    """Finds tenants by their names. What was found is trusted for `seconds`."""

    def __init__(self, database: Database, *, seconds: float) -> None:
        self._database = database
        self._lookups = CachedLookups(self._load, seconds=seconds)

    async def identity(self, tenant: str, *, principal: str, scopes: frozenset[Scope]) -> Identity:
        """Returns the identity of verified credentials that name a tenant.

        The system tenant is for keys only: what issues tokens and certificates for clients could
        manage all tenants otherwise. Raises Unauthenticated, PermissionDenied (suspended),
        Exhausted, StorageError.
        """
        usable = 0 < len(tenant) <= MAX_NAME and tenant.isprintable()
        found = await self._lookups.find(tenant) if usable else None
        if found is None or found.tenant_id == SYSTEM_TENANT:
            raise Unauthenticated(
                Reason.CREDENTIALS_INVALID,
                "the credentials are valid, and name a tenant that they cannot act for: name one"
                " that exists",
                {"cause": "tenant"},
            )
        if found.suspended_at is not None:
            raise suspended()
        return Identity(tenant_id=found.tenant_id, principal=principal, scopes=scopes)

    async def check_active(self, tenant: str) -> None:
        """Raises PermissionDenied for a suspended tenant; also Exhausted.

        While the database cannot be read it passes: the call reports that itself.
        """
        try:
            found = await self._lookups.find(tenant)
        except StorageError:
            return
        if found is not None and found.suspended_at is not None:
            raise suspended()

    def forget(self) -> None:
        """Reads tenants anew: this process has changed some."""
        self._lookups.forget()

    async def _load(self, names: Sequence[str]) -> Mapping[str, StoredTenant]:
        async with self._database.sweeping(name="tenants") as tx:
            return {one.name: one for one in await tenants.find_all(tx, names)}
