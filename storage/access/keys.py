"""Writes and reads keys. Secrets are never stored: only their hashes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from service.domain.access.identity import Scope
from service.domain.access.keys import ApiKey, NewKey
from storage.engine.database import OF_TENANT, Transaction, first, value


@dataclass(frozen=True, kw_only=True, slots=True)
class VerifiableKey:
    """What verifying a key needs."""

    tenant_id: UUID
    secret_hash: bytes
    scopes: frozenset[Scope]
    session_prefix: str
    expires_at: datetime | None
    is_revoked: bool
    is_tenant_suspended: bool


_COLUMNS = (
    "tenant_id, key_id, display_name, scopes, session_prefix, created_at, created_by, replaces,"
    " expires_at, revoked_at, last_used_at"
)
_INSERT = f"""
INSERT INTO api_key (tenant_id, key_id, secret_hash, display_name, scopes, session_prefix,
    created_by, replaces, expires_at)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s)
RETURNING {_COLUMNS}
"""  # noqa: S608 - all of it is ours
_LIST = f"""
SELECT {_COLUMNS} FROM api_key
WHERE tenant_id = %(tenant)s
    AND (%(time)s::timestamptz IS NULL OR (created_at, key_id) > (%(time)s, %(key)s))
ORDER BY created_at, key_id LIMIT %(limit)s
"""  # noqa: S608 - as above
_LOCK = f"SELECT {_COLUMNS} FROM api_key WHERE key_id = %s FOR NO KEY UPDATE"  # noqa: S608
_REVOKE = f"""
UPDATE api_key SET revoked_at = now() WHERE key_id = %s AND revoked_at IS NULL
RETURNING {_COLUMNS}
"""  # noqa: S608 - as above
#: Creations of one tenant wait for each other, so that the limit is exact.
_COUNT = """
SELECT count(*) FROM api_key
WHERE tenant_id = %s AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > now())
"""
_ONE_BY_ONE = "SELECT pg_advisory_xact_lock(hashtextextended('api_key ' || %s, 0))"
_VERIFY = """
SELECT k.key_id, k.tenant_id, k.secret_hash, k.scopes, k.session_prefix, k.expires_at,
    k.revoked_at IS NOT NULL AS is_revoked, t.suspended_at IS NOT NULL AS is_tenant_suspended
FROM api_key k JOIN tenant t ON t.tenant_id = k.tenant_id AND t.deleted_at IS NULL
WHERE k.key_id = ANY(%s)
"""
_USED = """
UPDATE api_key SET last_used_at = used.at
FROM unnest(%s::text[], %s::timestamptz[]) AS used (key_id, at)
WHERE api_key.key_id = used.key_id
    AND (last_used_at IS NULL OR last_used_at < used.at - interval '1 minute')
"""


async def create(
    tx: Transaction, key_id: str, secret_hash: bytes, new: NewKey, *, by: str, replaces: str
) -> ApiKey:
    """Stores a key of the transaction's tenant."""
    scopes = sorted(new.scopes)
    values = (
        *(tx.tenant_id, key_id, secret_hash, new.display_name, scopes, new.session_prefix),
        *(by, replaces, new.expires_at),
    )
    return _key((await tx.fetch(_INSERT, values))[0])


async def count_active(tx: Transaction) -> int:
    """Returns how many keys of the tenant are valid; no other can be created until the end."""
    await tx.execute(_ONE_BY_ONE, (str(tx.tenant_id),))
    return int(value(await tx.fetch(_COUNT, (tx.tenant_id,))))


async def list_keys(
    tx: Transaction, after: tuple[datetime, str] | None, limit: int
) -> Sequence[ApiKey]:
    """Returns up to `limit` keys of the tenant from the oldest, after a time and an id."""
    time, key = (None, "") if after is None else after
    values = {"tenant": tx.tenant_id, "time": time, "key": key, "limit": limit}
    return [_key(row) for row in await tx.fetch(_LIST, values)]


async def lock(tx: Transaction, key_id: str) -> ApiKey | None:
    """Returns a key of the tenant, locked until the end of the transaction."""
    row = first(await tx.fetch(_LOCK, (key_id,)))
    return None if row is None else _key(row)


async def revoke(tx: Transaction, key_id: str) -> ApiKey | None:
    """Revokes a key; None when it was revoked before."""
    row = first(await tx.fetch(_REVOKE, (key_id,)))
    return None if row is None else _key(row)


async def expire(tx: Transaction, key_id: str, at: datetime) -> None:
    """Has a key expire at a time."""
    await tx.execute("UPDATE api_key SET expires_at = %s WHERE key_id = %s", (at, key_id))


async def verifiable(tx: Transaction, key_ids: Sequence[str]) -> Mapping[str, VerifiableKey]:
    """Returns the keys of these ids, of all tenants; for a transaction of the sweeper's."""
    rows = await tx.fetch(_VERIFY, (list(key_ids),))
    return {
        row.key_id: VerifiableKey(
            tenant_id=row.tenant_id,
            secret_hash=bytes(row.secret_hash),
            scopes=_scopes(row.scopes),
            session_prefix=row.session_prefix,
            expires_at=row.expires_at,
            is_revoked=row.is_revoked,
            is_tenant_suspended=row.is_tenant_suspended,
        )
        for row in rows
    }


async def note_used(tx: Transaction, used: Mapping[str, tuple[UUID, datetime]]) -> None:
    """Stores when keys, of any tenant, were last used; at most once a minute for each."""
    by_tenant: dict[UUID, dict[str, datetime]] = {}
    for key_id, (tenant_id, at) in sorted(used.items()):
        by_tenant.setdefault(tenant_id, {})[key_id] = at
    for tenant_id, times in sorted(by_tenant.items()):
        await tx.execute(OF_TENANT, (str(tenant_id),))
        await tx.execute(_USED, (list(times), list(times.values())))


def _scopes(stored: Sequence[str]) -> frozenset[Scope]:
    # A later release may have written one that this one does not know, and grants nothing by it.
    return frozenset(Scope(one) for one in stored if one in set(Scope))


def _key(row: Any) -> ApiKey:
    return ApiKey(**{**row._asdict(), "scopes": _scopes(row.scopes)})
