"""Reads, sets and enforces the quotas of tenants."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from uuid import UUID

from service.domain.access.audit import AuditAction, AuditEntry
from service.domain.access.identity import current_identity
from service.domain.access.keys import StoredTenant, require_operator, tenant_not_found
from service.domain.access.quotas import UNLIMITED, Quota, QuotaName, exceeded
from service.domain.log.appending import Submission
from service.domain.values.errors import Exhausted
from service.domain.values.tenancy import DEFAULT_TENANT, SYSTEM_TENANT
from service.settings.config import Limits
from service.usecases.access.lookups import CachedLookups
from service.usecases.access.rate_limits import RateLimits
from service.usecases.access.tenants import Tenants, as_tenant
from service.usecases.log.idempotency import is_done, store_result
from service.usecases.log.room import Room, unlimited
from service.usecases.operations.import_rules import ImportAmounts
from storage.access import audit, quotas, tenants
from storage.access.quotas import StoredQuota
from storage.engine.database import Database, Transaction

#: For how long a server trusts a count of stored bytes, and of what is far from its limit.
COUNT_SECONDS = 5.0
#: Far from its limit is what so many more may be added to: more than a tenant can add within
#: COUNT_SECONDS. What is nearer is counted each time.
FAR = 10_000
_NOTHING: StoredQuota = {}


class Quotas:
    """What administrators do with quotas."""

    def __init__(
        self, database: Database, tenants: Tenants, limits: Limits, changed: Callable[[], None]
    ) -> None:
        """`changed` is called when a quota has changed."""
        self._database = database
        self._tenants = tenants
        self._limits = limits
        self._changed = changed

    async def get(self, tenant: str) -> tuple[StoredTenant, Quota]:
        """Returns the quotas that are in force. Raises NotFound."""
        of = await self._tenants.target(tenant)
        async with self._database.transaction(of.tenant_id, name="quotas") as tx:
            stored = await quotas.read(tx, [of.tenant_id])
        return of, in_force(of.tenant_id, stored.get(of.tenant_id, _NOTHING), self._limits)

    async def update(
        self, tenant: str, changes: Mapping[QuotaName, int | None]
    ) -> tuple[StoredTenant, Quota]:
        """Sets quotas; None restores the default. Raises NotFound, PermissionDenied."""
        identity = current_identity()
        require_operator(identity)
        of = await self._tenants.target(tenant)
        async with self._database.transaction(of.tenant_id, name="quotas") as tx:
            if await tenants.lock(tx) is None:
                raise tenant_not_found(of.name)
            before = await quotas.read(tx, [of.tenant_id])
            after = {**before.get(of.tenant_id, _NOTHING), **changes}
            await quotas.write(tx, after)
            details = {name.value: "default" if n is None else n for name, n in changes.items()}
            entry = AuditEntry(action=AuditAction.QUOTA_UPDATE, target=of.name, details=details)
            await audit.record(tx, entry)
            result = of, in_force(of.tenant_id, after, self._limits)
            await store_result(await as_tenant(tx, identity.tenant_id), result)
        self._changed()
        return result


def in_force(tenant_id: UUID, stored: StoredQuota, limits: Limits) -> Quota:
    """Returns the quotas of a tenant, with the defaults; none of them limits our own tenants."""
    is_own = tenant_id in (DEFAULT_TENANT, SYSTEM_TENANT)
    found: dict[str, int] = {}
    for name in QuotaName:
        given = stored.get(name)
        default = 0 if is_own else int(getattr(limits, f"tenant_{name.value}"))
        found[name.value] = default if given is None else given
    return Quota(**found)


class QuotaGuard:
    """Enforces the quotas of all tenants, in one API server.

    What the database says of a quota is trusted for `seconds`.
    """

    def __init__(
        self, database: Database, limits: Limits, rates: RateLimits, *, seconds: float
    ) -> None:
        self._database = database
        self._limits = limits
        self._rates = rates
        self._lookups = CachedLookups(self._load, seconds=seconds)
        self._counts = {
            name: CachedLookups(partial(self._count, name), seconds=COUNT_SECONDS)
            for name in (QuotaName.SESSIONS, QuotaName.MEMORIES, QuotaName.STORED_BYTES)
        }

    def forget(self) -> None:
        """Reads quotas anew: this process has changed some."""
        self._lookups.forget()
        # They were counted up to the limits of before.
        for counts in self._counts.values():
            counts.forget()

    async def of(self, tenant_id: UUID) -> Quota:
        """Returns the quotas of a tenant. Raises Exhausted, StorageError."""
        return await self._lookups.find(str(tenant_id)) or UNLIMITED

    async def admit(self, tenant_id: UUID, amounts: Mapping[QuotaName, int]) -> None:
        """Counts what a call sends against the tenant's rates. Raises Exhausted."""
        quota = await self.of(tenant_id)
        for name, amount in amounts.items():
            rate = quota.limit(name)
            if rate and amount:
                wait = await self._rates.take(tenant_id, name, rate=rate, needed=amount)
                if wait:
                    raise exceeded(name, rate, retry_seconds=wait)

    async def pace(self, tenant_id: UUID, amounts: Mapping[QuotaName, int]) -> None:
        """Waits until the tenant's rates allow what a stream sends. Raises Exhausted."""
        for name, amount in amounts.items():
            while amount and (rate := (await self.of(tenant_id)).limit(name)):
                wait = await self._rates.take(tenant_id, name, rate=rate, needed=amount)
                if not wait:
                    break
                await asyncio.sleep(wait)

    async def pace_import(self, tenant_id: UUID, amounts: ImportAmounts) -> None:
        """Waits until the tenant's quotas allow a block of an import. Raises Exhausted."""
        await self.check_bytes(tenant_id)
        rates = {
            QuotaName.CHUNKS_PER_SECOND: amounts.chunks,
            QuotaName.BYTES_PER_SECOND: amounts.size_bytes,
        }
        await self.pace(tenant_id, rates)

    async def check_bytes(self, tenant_id: UUID) -> None:
        """Refuses to store more than the quota, to within COUNT_SECONDS. Raises Exhausted."""
        name = QuotaName.STORED_BYTES
        limit = (await self.of(tenant_id)).limit(name)
        if limit and (await self._counts[name].find(str(tenant_id)) or 0) >= limit:
            raise exceeded(name, limit)

    async def check_append(self, tenant_id: UUID, submission: Submission) -> None:
        """Refuses as `check_bytes`, unless the request of the append was done before."""
        try:
            await self.check_bytes(tenant_id)
        except Exhausted:
            done = submission.request
            key = submission.session_key
            if done is None or not await is_done(self._database, tenant_id, key, done.request_id):
                raise

    async def session_room(self, tenant_id: UUID) -> Room:
        """Returns what checks a transaction that has added a session."""
        return await self._room(tenant_id, QuotaName.SESSIONS)

    async def memory_room(self, tenant_id: UUID) -> Room:
        """Returns what checks a transaction that has added a memory."""
        return await self._room(tenant_id, QuotaName.MEMORIES)

    async def _room(self, tenant_id: UUID, name: QuotaName) -> Room:
        limit = (await self.of(tenant_id)).limit(name)
        if not limit or (await self._counts[name].find(str(tenant_id)) or 0) + FAR < limit:
            return unlimited
        return partial(_check_added, name=name, limit=limit)

    async def _load(self, ids: Sequence[str]) -> Mapping[str, Quota]:
        tenants = [UUID(id) for id in ids]
        async with self._database.sweeping(name="quotas") as tx:
            stored = await quotas.read(tx, tenants)
        return {str(one): in_force(one, stored.get(one, _NOTHING), self._limits) for one in tenants}

    async def _count(self, name: QuotaName, ids: Sequence[str]) -> Mapping[str, int]:
        found: dict[str, int] = {}
        for id in ids:
            limit = (await self.of(UUID(id))).limit(name)
            async with self._database.transaction(UUID(id), name="quotas") as tx:
                found[id] = await quotas.count(tx, name, limit)
        return found


async def _check_added(tx: Transaction, *, name: QuotaName, limit: int) -> None:
    await quotas.lock(tx, name)
    if await quotas.count(tx, name, limit + 1) > limit:
        raise exceeded(name, limit)
