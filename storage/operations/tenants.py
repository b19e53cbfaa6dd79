"""Lists and finds tenants, for operators of a deployment.

Needs `Database.sweeping`: to other roles row-level security shows only their own tenant.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import Text, cast, or_, select

from storage.engine.database import Transaction
from storage.operations.doctor import seen
from storage.tables import tenant


@dataclass(frozen=True, kw_only=True, slots=True)
class Tenant:
    """A tenant. Several may have the same name."""

    tenant_id: UUID
    name: str


_COLUMNS = (tenant.c.tenant_id, tenant.c.name)


async def list_after(tx: Transaction, after: UUID, limit: int) -> Sequence[Tenant]:
    """Returns up to `limit` tenants after an id, by id. Raises StorageError."""
    statement = select(*_COLUMNS).where(tenant.c.tenant_id > after).order_by(tenant.c.tenant_id)
    with seen():
        rows = await tx.fetch(statement.limit(limit))
        return [Tenant(**row._asdict()) for row in rows]


async def find(tx: Transaction, wanted: str) -> Sequence[Tenant]:
    """Returns the tenants of that name or id, in order, at most two. Raises StorageError."""
    named = or_(tenant.c.name == wanted, cast(tenant.c.tenant_id, Text) == wanted.lower())
    statement = select(*_COLUMNS).where(named).order_by(tenant.c.tenant_id).limit(2)
    with seen():
        rows = await tx.fetch(statement)
        return [Tenant(**row._asdict()) for row in rows]
