"""Lists erasures, and gives their receipts."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from service.domain.access.identity import current_identity
from service.domain.access.keys import StoredTenant, require_operator
from service.domain.log.erasures import Erasure, ErasureKind, ErasureRequest
from service.domain.log.receipts import Receipt, body_of
from service.domain.values.errors import FailedPrecondition, NotFound
from service.domain.values.reasons import Reason
from service.domain.values.tenancy import DEFAULT_TENANT, SYSTEM_TENANT
from service.usecases.access.tenants import Tenants, as_tenant
from service.usecases.log.idempotency import store_result
from service.usecases.operations.erasure_journal import ErasureJournal
from service.usecases.operations.signing import public_key, sign
from service.usecases.operations.tenant_removal import record_deletion
from storage.access import tenants
from storage.engine.database import Database
from storage.log import erasures
from storage.operations import copies, tenant_removal

#: Sessions that a receipt names.
MAX_COPIES = 1000


@dataclass(frozen=True, kw_only=True, slots=True)
class ErasurePage:
    """Erasures of a tenant, and the key that verifies its receipts."""

    erasures: Sequence[Erasure]
    public_key: bytes


class Erasures:
    """What administrators read of erasures, and the erasure of a tenant."""

    def __init__(
        self, database: Database, of_access: Tenants, journal: ErasureJournal, *, journals: bool
    ) -> None:
        """`journals`: whether a receipt waits for the erasure journal."""
        self._database = database
        self._tenants = of_access
        self._journal = journal
        self._journals = journals

    async def page(
        self, tenant: str, after: tuple[datetime, UUID] | None, limit: int
    ) -> ErasurePage:
        """Returns up to `limit` erasures after one, oldest first. Raises NotFound.

        Those of the system tenant have the deletions of all tenants among them.
        """
        tenant_id = await self._tenants.target_id(tenant)
        deleted: Sequence[tuple[UUID, UUID]] = ()
        if tenant_id == SYSTEM_TENANT:
            async with self._database.sweeping(name="erasures") as tx:
                deleted = await erasures.list_of_tenants(tx, after, limit)
        async with self._database.transaction(tenant_id, name="erasures") as tx:
            found = list(await erasures.list_after(tx, after, limit))
            keys = await erasures.keys(tx)
            for erasure_id, of_tenant in deleted:
                one = await erasures.find(await as_tenant(tx, of_tenant), erasure_id)
                assert one is not None, "it is kept for good"
                found.append(one)
        found.sort(key=lambda one: (one.requested_at, one.erasure_id))
        return ErasurePage(erasures=found[:limit], public_key=public_key(keys.signing))

    async def receipt(self, tenant: str, erasure: str) -> tuple[Receipt, Sequence[str]]:
        """Returns the receipt of an erasure, and the sessions that have imports of it now.

        Raises NotFound, FailedPrecondition.
        """
        tenant_id = await self._tenants.target_id(tenant)
        if tenant_id == SYSTEM_TENANT:
            # A deleted tenant keeps its erasure, and the key that signs the receipt.
            async with self._database.sweeping(name="erasures") as tx:
                tenant_id = await erasures.tenant_of(tx, UUID(erasure)) or tenant_id
        async with self._database.transaction(tenant_id, name="erasures") as tx:
            found = await erasures.find(tx, UUID(erasure))
            keys = await erasures.keys(tx)
            exported = () if found is None else found.exports()
            imported, _ = await copies.find(tx, exported, MAX_COPIES)
        if found is None:
            raise NotFound(
                Reason.ERASURE_NOT_FOUND,
                f"there is no erasure {erasure}: ListErasures has all",
                {"erasure": erasure},
            )
        if found.completed_at is None:
            raise _not_complete(erasure, "removing", "its rows are being removed")
        if self._journals and found.journalled_at is None:
            raise _not_complete(erasure, "journal", "the erasure journal does not have it yet")
        names = [one.name for one in reversed(imported) if one.name]
        return sign(body_of(found), keys.signing), names

    async def delete_tenant(self, name: str, reason: str) -> Erasure:
        """Deletes a tenant; workers remove what it has.

        Raises NotFound, PermissionDenied, FailedPrecondition.
        """
        identity = current_identity()
        require_operator(identity)
        target = await self._tenants.target(name)
        if target.tenant_id in (DEFAULT_TENANT, SYSTEM_TENANT):
            raise FailedPrecondition(
                Reason.TENANT_PROTECTED,
                f"the tenant {name!r} cannot be deleted: every deployment has it. Delete its"
                " sessions instead",
                {"tenant": name},
            )
        made = await self._delete(
            target, ErasureRequest(principal=identity.principal, reason=reason)
        )
        self._tenants.forget()
        await self._journal.keep(target.tenant_id)
        return made

    async def _delete(self, target: StoredTenant, request: ErasureRequest) -> Erasure:
        identity = current_identity()
        async with self._database.transaction(target.tenant_id, name="delete-tenant") as tx:
            if await tenants.lock(tx) is None or not await tenant_removal.delete_tenant(tx):
                # Another call was first.
                raise NotFound(
                    Reason.TENANT_NOT_FOUND,
                    f"there is no tenant {target.name!r}",
                    {"tenant": target.name},
                )
            erasure_id = await erasures.record(
                tx, ErasureKind.TENANT, request, session=None, item=None
            )
            made = await erasures.find(tx, erasure_id)
            assert made is not None, "it was written just now"
            await record_deletion(tx, target.name, made)
            await store_result(await as_tenant(tx, identity.tenant_id), made)
        return made


def _not_complete(erasure: str, cause: str, said: str) -> FailedPrecondition:
    return FailedPrecondition(
        Reason.ERASURE_NOT_COMPLETE,
        f"erasure {erasure} has no receipt yet: {said}. Ask again later",
        {"erasure": erasure, "cause": cause},
    )
