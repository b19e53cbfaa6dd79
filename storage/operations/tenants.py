"""Lists and finds tenants, for operators of a deployment.

Needs `Database.sweeping`: to other roles row-level security shows only their own tenant.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import Text, and_, cast, or_, select

from storage.engine.database import Transaction, first
from storage.operations.doctor import seen
from storage.tables import tenant


@dataclass(frozen=True, kw_only=True, slots=True)
class Tenant:
    """A tenant. Deleted ones may have the name of another."""

    tenant_id: UUID
    name: str


_COLUMNS = (tenant.c.tenant_id, tenant.c.name)


async def list_after(tx: Transaction, after: UUID, limit: int) -> Sequence[Tenant]:
    """Returns up to `limit` tenants after an id, by id. Raises StorageError."""
    statement = select(*_COLUMNS).where(tenant.c.tenant_id > after).order_by(tenant.c.tenant_id)
    with seen():
        rows = await tx.fetch(statement.limit(limit))
        return [Tenant(**row._asdict()) for row in rows]


async def find(tx: Transaction, wanted: str) -> Tenant | None:
    """Returns the tenant of that name, unless it is deleted, or of that id. Raises StorageError."""
    of_id = cast(tenant.c.tenant_id, Text) == wanted.lower()
    named = and_(tenant.c.name == wanted, tenant.c.deleted_at.is_(None))
    statement = select(*_COLUMNS).where(or_(of_id, named)).order_by(of_id.desc()).limit(1)
    with seen():
        row = first(await tx.fetch(statement))
        return None if row is None else Tenant(**row._asdict())
