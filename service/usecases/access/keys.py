"""Creates, lists, rotates and revokes keys."""

import secrets
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta

from service.domain.access.audit import AuditAction, AuditEntry, Detail
from service.domain.access.credentials import ID_BYTES, SECRET_BYTES, KeyText
from service.domain.access.identity import Scope, current_identity
from service.domain.access.keys import ApiKey, KeyState, NewKey, StoredTenant
from service.domain.values.errors import Exhausted, InvalidInput, NotFound
from service.domain.values.reasons import Reason
from service.usecases.access.tenants import Tenants, as_tenant
from service.usecases.log.idempotency import store_result
from storage.access import audit, keys
from storage.engine.database import Database, Transaction

#: A key, and the text that clients send, which is never stored.
Issued = tuple[ApiKey, KeyText]


class Keys:
    """What administrators do with keys."""

    def __init__(
        self, database: Database, tenants: Tenants, changed: Callable[[], None], *, max_keys: int
    ) -> None:
        """`changed` is called when keys that were verified before may not be valid any more."""
        self._database = database
        self._tenants = tenants
        self._changed = changed
        self._max_keys = max_keys

    async def create(self, tenant: str, new: NewKey) -> tuple[StoredTenant, Issued]:
        """Creates a key of a tenant. Raises NotFound, Exhausted, InvalidInput."""
        _check_end(new.expires_at)
        target = await self._tenants.target(tenant)
        by = current_identity().principal
        async with self._database.transaction(target.tenant_id, name="keys") as tx:
            issued = await issue(tx, new, by=by, max_keys=self._max_keys)
        return target, issued

    async def page(
        self, tenant: str, after: tuple[datetime, str] | None, limit: int
    ) -> tuple[StoredTenant, Sequence[ApiKey]]:
        """Returns up to `limit` keys of a tenant from the oldest. Raises NotFound."""
        target = await self._tenants.target(tenant)
        async with self._database.transaction(target.tenant_id, name="keys") as tx:
            return target, await keys.list_keys(tx, after, limit)

    async def rotate(
        self, tenant: str, key_id: str, *, overlap: timedelta, expires_at: datetime | None
    ) -> tuple[StoredTenant, Issued]:
        """Creates a key in place of another, which expires after `overlap`.

        Raises NotFound, Exhausted, InvalidInput.
        """
        _check_end(expires_at)
        target = await self._tenants.target(tenant)
        now = datetime.now(UTC)
        async with self._database.transaction(target.tenant_id, name="keys") as tx:
            old = await keys.lock(tx, key_id)
            if old is None:
                raise _not_found(key_id)
            if old.state(now) is not KeyState.ACTIVE:
                raise _not_found(key_id, f"is {old.state(now)}: create another key")
            if expires_at is None and old.expires_at is not None:
                expires_at = now + (old.expires_at - old.created_at)
            new = NewKey(
                display_name=old.display_name,
                scopes=old.scopes,
                session_prefix=old.session_prefix,
                expires_at=expires_at,
            )
            ends = now + overlap if old.expires_at is None else min(old.expires_at, now + overlap)
            await keys.expire(tx, key_id, ends)
            by = current_identity().principal
            issued = await issue(tx, new, by=by, max_keys=self._max_keys, replaces=key_id)
        self._changed()
        return target, issued

    async def revoke(self, tenant: str, key_id: str) -> tuple[StoredTenant, ApiKey]:
        """Revokes a key, unless it was. Raises NotFound."""
        target = await self._tenants.target(tenant)
        client = current_identity().tenant_id
        async with self._database.transaction(target.tenant_id, name="keys") as tx:
            found = await keys.lock(tx, key_id)
            if found is None:
                raise _not_found(key_id)
            revoked = await keys.revoke(tx, key_id)
            if revoked is not None:
                await audit.record(tx, AuditEntry(action=AuditAction.KEY_REVOKE, target=key_id))
            result = (target, revoked or found)
            await store_result(await as_tenant(tx, client), result)
        self._changed()
        return result


async def issue(
    tx: Transaction, new: NewKey, *, by: str, max_keys: int, replaces: str = ""
) -> Issued:
    """Creates a key of the transaction's tenant, by a principal. Raises Exhausted, InvalidInput."""
    if new.session_prefix and Scope.ADMIN in new.scopes:
        raise InvalidInput(
            Reason.FIELD_INVALID,
            "session_prefix: keys, quotas and the audit log are of no session, so a key with the"
            " scope admin has no prefix: make one key for administration, and another for the"
            " sessions",
            field="session_prefix",
        )
    if await keys.count_active(tx) >= max_keys:
        raise Exhausted(
            Reason.TOO_MANY_KEYS,
            f"the tenant has {max_keys} active keys, as many as it may: revoke some of them",
            {"limit": max_keys},
            retry_seconds=0.0,
        )
    text = KeyText.made_of(secrets.token_bytes(ID_BYTES), secrets.token_bytes(SECRET_BYTES))
    made = await keys.create(tx, text.key_id, text.hash, new, by=by, replaces=replaces)
    details: dict[str, Detail] = {
        "scopes": " ".join(sorted(new.scopes)),
        "session_prefix": new.session_prefix,
    }
    action = AuditAction.KEY_CREATE
    if replaces:
        action = AuditAction.KEY_ROTATE
        details["replaces"] = replaces
    entry = AuditEntry(action=action, target=text.key_id, details=details)
    await audit.record(tx, entry, principal=by)
    return made, text


def _check_end(expires_at: datetime | None) -> None:
    if expires_at is not None and expires_at <= datetime.now(UTC):
        raise InvalidInput(
            Reason.FIELD_INVALID, "expires_at: must be in the future", field="expires_at"
        )


def _not_found(key_id: str, why: str = "does not exist: list the keys") -> NotFound:
    return NotFound(Reason.KEY_NOT_FOUND, f"key {key_id} {why}", {"api_key": key_id})
