"""Reads and writes the quotas of tenants, and counts what some of them limit."""

from collections.abc import Mapping, Sequence
from uuid import UUID

from service.domain.access.quotas import QuotaName
from storage.engine.database import Transaction, first

_NAMES = ", ".join(name.value for name in QuotaName)
_VALUES = ", ".join(f"%({name.value})s" for name in QuotaName)
_CHANGED = ", ".join(f"{name.value} = excluded.{name.value}" for name in QuotaName)
_OF = f"SELECT tenant_id, {_NAMES} FROM tenant_quota WHERE tenant_id = ANY(%s)"  # noqa: S608 - ours
_SET = f"""
INSERT INTO tenant_quota (tenant_id, {_NAMES}) VALUES (%(tenant)s, {_VALUES})
ON CONFLICT (tenant_id) DO UPDATE SET {_CHANGED}
"""  # noqa: S608 - as above
#: Imports are hidden until they are complete, and count from their beginning.
_SHOW_HIDDEN = "SET LOCAL app.removing = 'on'"
_HIDE = "SET LOCAL app.removing = 'off'"
_IS_IMPORTED = """EXISTS (SELECT FROM session_import i
    WHERE i.session_key = session.session_key AND i.finished_at IS NULL)"""
_SESSIONS = f"""
SELECT count(*) FROM (
    SELECT FROM session WHERE tenant_id = %(tenant)s AND name > ''
        AND (deleted_at IS NULL OR {_IS_IMPORTED}) LIMIT %(limit)s) AS counted
"""  # noqa: S608 - as above
# By the sessions of the tenant: memories have no index for it.
_MEMORIES = f"""
SELECT count(*) FROM (
    SELECT FROM session JOIN memory USING (session_key)
    WHERE session.tenant_id = %(tenant)s AND session.name > ''
        AND (memory.deleted_at IS NULL OR {_IS_IMPORTED}) LIMIT %(limit)s) AS counted
"""  # noqa: S608 - as above
_BYTES = f"""
SELECT coalesce(sum(content_bytes), 0)::bigint FROM session
WHERE tenant_id = %(tenant)s AND name > '' AND (deleted_at IS NULL OR {_IS_IMPORTED})
"""  # noqa: S608 - as above
_COUNTS = {
    QuotaName.SESSIONS: _SESSIONS,
    QuotaName.MEMORIES: _MEMORIES,
    QuotaName.STORED_BYTES: _BYTES,
}

#: Transactions of a tenant that add the same thing wait for each other: none counts without what
#: the one before it added. No row exists for all of them to lock.
_ONE_BY_ONE = "SELECT pg_advisory_xact_lock(hashtextextended('quota ' || %s || ' ' || %s, 0))"

#: The quotas that were set for a tenant; None: the default.
StoredQuota = Mapping[QuotaName, int | None]


async def read(tx: Transaction, tenants: Sequence[UUID]) -> Mapping[UUID, StoredQuota]:
    """Returns the quotas of those tenants for which some were set.

    Needs `Database.sweeping` for others than the transaction's.
    """
    return {
        row.tenant_id: {name: getattr(row, name.value) for name in QuotaName}
        for row in await tx.fetch(_OF, (list(tenants),))
    }


async def write(tx: Transaction, quota: StoredQuota) -> None:
    """Sets the quotas of the transaction's tenant."""
    values = {name.value: quota.get(name) for name in QuotaName}
    await tx.execute(_SET, {"tenant": tx.tenant_id, **values})


async def lock(tx: Transaction, name: QuotaName) -> None:
    """Keeps others from passing `lock` for this tenant and quota until the transaction ends."""
    await tx.execute(_ONE_BY_ONE, (str(tx.tenant_id), name.value))


async def count(tx: Transaction, name: QuotaName, limit: int) -> int:
    """Returns how much the transaction's tenant has: of sessions and memories up to `limit`."""
    await tx.execute(_SHOW_HIDDEN, prepare=None)
    row = first(await tx.fetch(_COUNTS[name], {"tenant": tx.tenant_id, "limit": limit}))
    await tx.execute(_HIDE, prepare=None)
    return 0 if row is None else int(row[0])
