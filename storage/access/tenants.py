"""Creates, reads and lists tenants.

Reads of other tenants than the transaction's need `Database.sweeping`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from service.domain.access.keys import StoredTenant
from service.domain.operations.retention import Retention
from storage.engine.database import Transaction, first


@dataclass(frozen=True, kw_only=True, slots=True)
class TenantChange:
    """What changes of a tenant; None leaves it."""

    display_name: str | None = None
    is_suspended: bool | None = None
    retention: Retention | None = None


_COLUMNS = "tenant_id, name, display_name, created_at, suspended_at, retention"
_CREATE = f"""
INSERT INTO tenant (tenant_id, name, display_name, suspended_at)
VALUES (%s, %s, %s, %s)
ON CONFLICT DO NOTHING
RETURNING {_COLUMNS}
"""  # noqa: S608 - all of it is ours
_BY_NAME = f"SELECT {_COLUMNS} FROM tenant WHERE name = %s AND deleted_at IS NULL"  # noqa: S608
_BY_NAMES = f"SELECT {_COLUMNS} FROM tenant WHERE name = ANY(%s) AND deleted_at IS NULL"  # noqa: S608
_OWN = f"SELECT {_COLUMNS} FROM tenant WHERE tenant_id = %s AND deleted_at IS NULL"  # noqa: S608
_LOCK = f"{_OWN} FOR NO KEY UPDATE"
_KEEP = "SELECT true FROM tenant WHERE tenant_id = %s AND deleted_at IS NULL FOR SHARE"
_LIST = f"""
SELECT {_COLUMNS} FROM tenant WHERE deleted_at IS NULL AND name COLLATE "C" > %s
ORDER BY name COLLATE "C" LIMIT %s
"""  # noqa: S608 - as above
_UPDATE = f"""
UPDATE tenant SET
    display_name = coalesce(%(display_name)s, display_name),
    suspended_at = CASE WHEN %(suspended)s::boolean IS NULL THEN suspended_at
        WHEN %(suspended)s THEN coalesce(suspended_at, %(now)s) END,
    retention = coalesce(%(retention)s::jsonb, retention)
WHERE tenant_id = %(tenant)s
RETURNING {_COLUMNS}
"""  # noqa: S608 - as above


async def create(
    tx: Transaction, name: str, *, display_name: str, is_suspended: bool
) -> StoredTenant | None:
    """Creates the transaction's tenant; None where another one has the name."""
    # A function of time would be refused by a sharded database.
    suspended_at = datetime.now(UTC) if is_suspended else None
    row = first(await tx.fetch(_CREATE, (tx.tenant_id, name, display_name, suspended_at)))
    return None if row is None else _tenant(row)


async def get(tx: Transaction, tenant_id: UUID) -> StoredTenant | None:
    """Returns a tenant by the service's own id."""
    row = first(await tx.fetch(_OWN, (tenant_id,)))
    return None if row is None else _tenant(row)


async def find(tx: Transaction, name: str) -> StoredTenant | None:
    """Returns the tenant of a name, which the transaction may see."""
    row = first(await tx.fetch(_BY_NAME, (name,)))
    return None if row is None else _tenant(row)


async def find_all(tx: Transaction, names: Sequence[str]) -> Sequence[StoredTenant]:
    """Returns the tenants of names, as far as the transaction may see them."""
    return [_tenant(row) for row in await tx.fetch(_BY_NAMES, (list(names),))]


async def list_after(tx: Transaction, name: str, limit: int) -> Sequence[StoredTenant]:
    """Returns up to `limit` tenants after a name, in the order of the bytes of their names."""
    return [_tenant(row) for row in await tx.fetch(_LIST, (name, limit))]


async def lock(tx: Transaction) -> StoredTenant | None:
    """Returns the transaction's tenant, which no other changes until the end; None if deleted."""
    row = first(await tx.fetch(_LOCK, (tx.tenant_id,)))
    return None if row is None else _tenant(row)


async def keep(tx: Transaction) -> bool:
    """Keeps the transaction's tenant from being deleted before the end; False if it is already.

    For what adds a session: its deletion finds all sessions, or they are not added.
    """
    return bool(await tx.fetch(_KEEP, (tx.tenant_id,)))


async def update(tx: Transaction, change: TenantChange) -> StoredTenant:
    """Changes the transaction's tenant, which it has from `lock`."""
    values = {
        "tenant": tx.tenant_id,
        "display_name": change.display_name,
        "suspended": change.is_suspended,
        "retention": None if change.retention is None else change.retention.as_json(),
        "now": datetime.now(UTC),
    }
    return _tenant((await tx.fetch(_UPDATE, values))[0])


def _tenant(row: Any) -> StoredTenant:
    return StoredTenant(**row._asdict())
