"""Removes all that a deleted tenant has: its sessions as any other, and then the rest.

What stays is the tenant's row without its display name, its audit log, its erasures, and the keys
that sign their receipts.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from uuid import UUID

from service.domain.log.erasures import ErasureRequest
from storage.engine.database import Transaction
from storage.log import deleting

#: The principal of what the service does by itself.
_BY_SERVICE = ErasureRequest(principal="service", reason="its tenant was deleted")

_DELETE = """
UPDATE tenant SET deleted_at = now(), suspended_at = now(), display_name = ''
WHERE tenant_id = %(tenant)s AND deleted_at IS NULL
"""
_REVOKE = """
UPDATE api_key SET revoked_at = now() WHERE tenant_id = %(tenant)s AND revoked_at IS NULL
"""
# Imports that nothing continues are kept for days.
_REMOVE_NOW = """
UPDATE removal SET ready_at = now() WHERE tenant_id = %(tenant)s AND ready_at > now()
"""
_PENDING = (
    "SELECT tenant_id, erasure_id FROM erasure WHERE kind = 'tenant' AND completed_at IS NULL"
)
_FIND_DELETED = "SELECT tenant_id FROM tenant WHERE tenant_id = %s AND deleted_at IS NOT NULL"
_SESSIONS = """
SELECT session_key FROM session
WHERE tenant_id = %(tenant)s AND deleted_at IS NULL LIMIT %(limit)s
"""
_IS_REMOVING = "SELECT EXISTS (SELECT FROM removal WHERE tenant_id = %(tenant)s)"
_TAKE = """
SELECT true FROM erasure WHERE tenant_id = %(tenant)s AND erasure_id = %(erasure)s
    AND completed_at IS NULL FOR UPDATE SKIP LOCKED
"""
# Policies allow deletes of what is being removed.
_BEGIN = """
INSERT INTO removal (session_key, item_id, tenant_id)
SELECT session_key, session_key, tenant_id FROM session
WHERE tenant_id = %(tenant)s AND session_key = %(costs)s ON CONFLICT DO NOTHING
"""
_END = "DELETE FROM removal WHERE tenant_id = %(tenant)s"
#: What is the tenant's own: sums and requests have the key of the empty name.
_OWN = ("request", "call_sum", "spend_sum", "imported_usage")
_REST = ("tenant_budget", "tenant_spend_sum", "retention_turn", "api_key", "tenant_quota")
_TOTAL = """
SELECT t.key, sum(t.value::bigint)::bigint FROM erasure e, jsonb_each_text(e.counts) t
WHERE e.tenant_id = %(tenant)s AND e.kind <> 'tenant' AND e.requested_at >= (
    SELECT requested_at FROM erasure WHERE tenant_id = %(tenant)s AND erasure_id = %(erasure)s)
GROUP BY t.key
"""
_COMPLETE = """
UPDATE erasure SET completed_at = now(), counts = %(counts)s::jsonb
WHERE tenant_id = %(tenant)s AND erasure_id = %(erasure)s
"""


async def delete_tenant(tx: Transaction) -> bool:
    """Hides the transaction's tenant and revokes its keys; False when it is deleted already.

    What was to be removed later, unfinished imports among it, is removed now.
    """
    values = {"tenant": tx.tenant_id}
    if not await tx.execute(_DELETE, values):
        return False
    await tx.execute(_REVOKE, values)
    await tx.execute(_REMOVE_NOW, values)
    return True


async def find_deleted(tx: Transaction, tenant_id: UUID) -> bool:
    """Returns whether there was such a tenant, and is none any more. For a sweep."""
    return bool(await tx.fetch(_FIND_DELETED, (tenant_id,)))


async def pending(tx: Transaction) -> Sequence[tuple[UUID, UUID]]:
    """Returns tenant and erasure of what is left to remove. For a sweep."""
    return [(row[0], row[1]) for row in await tx.fetch(_PENDING)]


async def hide_sessions(tx: Transaction, limit: int) -> int:
    """Deletes up to `limit` sessions of the transaction's tenant; returns how many."""
    found = await tx.fetch(_SESSIONS, {"tenant": tx.tenant_id, "limit": limit})
    for (key,) in found:
        await deleting.delete_session(tx, key, _BY_SERVICE)
    return len(found)


async def remove_rest(tx: Transaction, erasure_id: UUID, limit: int) -> bool:
    """Removes up to `limit` sessions' tombstones, or all the rest; returns whether it is done.

    For a tenant without sessions. False as well while rows of sessions are being removed.
    """
    values: dict[str, object] = {
        "tenant": tx.tenant_id,
        "erasure": erasure_id,
        "costs": deleting.costs_key(tx.tenant_id),
        "limit": limit,
    }
    ((is_removing,),) = await tx.fetch(_IS_REMOVING, values)
    if is_removing or not await tx.fetch(_TAKE, values):
        return False
    await tx.execute(deleting.REMOVING, prepare=None)
    tombstones = await tx.execute(
        "DELETE FROM session WHERE ctid = ANY(ARRAY(SELECT ctid FROM session"
        " WHERE tenant_id = %(tenant)s AND session_key <> %(costs)s LIMIT %(limit)s))",
        values,
    )
    if tombstones:
        return False
    removed: Counter[str] = Counter()
    await tx.execute(_BEGIN, values)
    for table in _OWN:
        removed[table] += await tx.execute(
            f"DELETE FROM {table} WHERE session_key = %(costs)s",  # noqa: S608 - from above
            values,
        )
    await tx.execute(_END, values)
    await tx.execute("DELETE FROM session WHERE session_key = %(costs)s", values)
    for table in _REST:
        removed[table] += await tx.execute(
            f"DELETE FROM {table} WHERE tenant_id = %(tenant)s",  # noqa: S608 - from above
            values,
        )
    await _complete(tx, values, removed)
    return True


async def _complete(tx: Transaction, values: Mapping[str, object], removed: Counter[str]) -> None:
    removed.update({row[0]: row[1] for row in await tx.fetch(_TOTAL, values)})
    counts = {name: count for name, count in removed.items() if count}
    await tx.execute(_COMPLETE, {**values, "counts": json.dumps(counts)})
