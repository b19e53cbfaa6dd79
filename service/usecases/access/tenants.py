"""Creates, reads and changes tenants, and finds the one that a call is about."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from uuid import UUID, uuid4

from service.domain.access.audit import AuditAction, AuditEntry, Detail
from service.domain.access.identity import Identity, current_identity
from service.domain.access.keys import (
    StoredTenant,
    is_operator,
    require_operator,
    tenant_not_found,
)
from service.domain.operations.retention import NAMES, NO_POLICY, Retention
from service.domain.values.errors import AlreadyExists, InvalidInput
from service.domain.values.reasons import Reason
from service.domain.values.tenancy import SYSTEM_TENANT
from service.usecases.log.idempotency import store_result
from storage.access import audit, tenants
from storage.access.tenants import TenantChange
from storage.engine.database import OF_TENANT, Database, Transaction
from storage.log import retention_turns
from storage.operations import tenant_removal

#: In the details of an event: the policy says nothing of it any more.
UNSET = "unset"


class Tenants:
    """What administrators do with tenants."""

    def __init__(self, database: Database, changed: Callable[[], None] = lambda: None) -> None:
        """`changed` is called when what verifies credentials of a tenant has changed."""
        self._database = database
        self._changed = changed

    def forget(self) -> None:
        """Makes this server verify credentials anew."""
        self._changed()

    async def target(self, name: str) -> StoredTenant:
        """Returns the tenant that a call of the current client names; empty: its own.

        Raises NotFound for another one, unless the client manages tenants.
        """
        identity = current_identity()
        if not name or not is_operator(identity):
            async with self._database.transaction(identity.tenant_id, name="tenants") as tx:
                found = await tenants.get(tx, identity.tenant_id)
            if found is not None and name and found.name != name:
                found = None
        else:
            async with self._database.sweeping(name="tenants") as tx:
                found = await tenants.find(tx, name)
        if found is None:
            raise tenant_not_found(name)
        return found

    async def target_id(self, name: str) -> UUID:
        """Returns the tenant's id as `target` does; of a deleted one, for operators, by that id.

        Its audit log and its erasures stay. Raises NotFound.
        """
        if is_operator(current_identity()) and (deleted := _uid(name)) is not None:
            async with self._database.sweeping(name="tenants") as tx:
                if await tenant_removal.find_deleted(tx, deleted):
                    return deleted
        return (await self.target(name)).tenant_id

    async def create(
        self, name: str, *, display_name: str, is_suspended: bool, retention: Retention = NO_POLICY
    ) -> StoredTenant:
        """Creates a tenant. Raises AlreadyExists, PermissionDenied."""
        identity = current_identity()
        require_operator(identity)
        async with self._database.transaction(uuid4(), name="tenants") as tx:
            made = await tenants.create(
                tx, name, display_name=display_name, is_suspended=is_suspended
            )
            if made is None:
                raise AlreadyExists(
                    Reason.TENANT_EXISTS,
                    f"there is a tenant {name!r} already: choose another id",
                    {"tenant": name},
                )
            if retention.stored():
                await retention_turns.begin(tx)
                made = await tenants.update(tx, TenantChange(retention=retention))
            await audit.record(tx, AuditEntry(action=AuditAction.TENANT_CREATE, target=name))
            return await _store(tx, identity, made)

    async def page(self, after: str, limit: int) -> Sequence[StoredTenant]:
        """Returns up to `limit` tenants after a name. Raises PermissionDenied."""
        require_operator(current_identity())
        async with self._database.sweeping(name="tenants") as tx:
            return await tenants.list_after(tx, after, limit)

    async def update(self, name: str, change: TenantChange) -> StoredTenant:
        """Changes a tenant. Raises NotFound, InvalidInput, PermissionDenied."""
        identity = current_identity()
        require_operator(identity)
        tenant_id = (await self.target(name)).tenant_id
        if change.is_suspended and tenant_id == SYSTEM_TENANT:
            raise InvalidInput(
                Reason.FIELD_INVALID,
                "tenant.suspended: the system tenant cannot be suspended, since its"
                " administrators resume the others",
                field="tenant.suspended",
            )
        async with self._database.transaction(tenant_id, name="tenants") as tx:
            before = await tenants.lock(tx)
            if before is None:
                raise tenant_not_found(name)
            made = await tenants.update(tx, change)
            if change.retention is not None:
                await retention_turns.begin(tx)
            for action in _actions(before, made):
                details = _changes(before, made) if action is AuditAction.TENANT_UPDATE else {}
                await audit.record(tx, AuditEntry(action=action, target=name, details=details))
            await _store(tx, identity, made)
        self._changed()
        return made


def _uid(tenant: str) -> UUID | None:
    try:
        return UUID(tenant)
    except ValueError:
        return None


def _actions(before: StoredTenant, after: StoredTenant) -> Sequence[AuditAction]:
    """Returns what an update did."""
    actions = []
    if (before.display_name, before.retention) != (after.display_name, after.retention):
        actions.append(AuditAction.TENANT_UPDATE)
    if (before.suspended_at is None) != (after.suspended_at is None):
        is_suspended = after.suspended_at is not None
        actions.append(AuditAction.TENANT_SUSPEND if is_suspended else AuditAction.TENANT_RESUME)
    return actions


def _changes(before: StoredTenant, after: StoredTenant) -> Mapping[str, Detail]:
    """Returns the fields that have another value, with it; of a policy each of its fields."""
    found: dict[str, Detail] = {}
    if before.display_name != after.display_name:
        found["display_name"] = after.display_name
    for name in NAMES:
        if before.retention.get(name) != after.retention.get(name):
            found[f"retention.{name}"] = after.retention.get(name, UNSET)
    return found


async def as_tenant(tx: Transaction, tenant_id: UUID) -> Transaction:
    """Continues a transaction about one tenant as another's.

    The result of a request belongs to the tenant whose client sent it.
    """
    if tx.tenant_id == tenant_id:
        return tx
    await tx.execute(OF_TENANT, (str(tenant_id),))
    return replace(tx, tenant_id=tenant_id)


async def _store(tx: Transaction, identity: Identity, made: StoredTenant) -> StoredTenant:
    return await store_result(await as_tenant(tx, identity.tenant_id), made)
