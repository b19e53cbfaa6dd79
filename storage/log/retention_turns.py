"""Stores policies of retention of tenants, and whose turn it is to have one applied.

A worker claims a turn for the time of a lease, and renews it in each transaction that removes
something. After a crash another worker continues where the last transaction ended.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID, uuid4

from service.domain.operations.retention import Retention
from storage.engine.database import Transaction, first

_BEGIN = "INSERT INTO retention_turn (tenant_id) VALUES (%(tenant)s) ON CONFLICT DO NOTHING"
_READ = "SELECT retention FROM tenant WHERE tenant_id = %(tenant)s"
_WRITE = "UPDATE tenant SET retention = %(retention)s::jsonb WHERE tenant_id = %(tenant)s"
_DUE = "SELECT tenant_id FROM retention_turn WHERE ready_at <= now() ORDER BY ready_at LIMIT %s"
_CLAIM = """
UPDATE retention_turn
SET lease_id = %(lease)s, ready_at = now() + make_interval(secs => %(seconds)s)
WHERE tenant_id = %(tenant)s AND ready_at <= now() RETURNING after_name
"""
_RENEW = """
UPDATE retention_turn SET after_name = coalesce(%(name)s, after_name),
    ready_at = now() + make_interval(secs => %(seconds)s)
WHERE tenant_id = %(tenant)s AND lease_id = %(lease)s
"""
_END = """
UPDATE retention_turn SET after_name = '', ended_at = now(),
    ready_at = now() + make_interval(secs => %(seconds)s)
WHERE tenant_id = %(tenant)s AND lease_id = %(lease)s
"""
_AGE = """
SELECT extract(epoch FROM now() - coalesce(ended_at, created_at))::float8 FROM retention_turn
WHERE tenant_id = %(tenant)s AND (
    EXISTS (SELECT FROM tenant WHERE tenant_id = %(tenant)s AND retention <> '{}'::jsonb)
    OR EXISTS (SELECT FROM session WHERE tenant_id = %(tenant)s
        AND retention <> '{}'::jsonb AND name > ''))
"""


class TurnLost(Exception):
    """Another worker has the turn: what this one was about to do is rolled back."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RetentionTurn:
    """A claimed turn."""

    lease_id: UUID
    #: Sessions up to this name are done.
    after_name: str


async def begin(tx: Transaction) -> None:
    """Adds the tenant to those whose policies are applied. For every change of a policy."""
    await tx.execute(_BEGIN, {"tenant": tx.tenant_id})


async def read_policy(tx: Transaction) -> Retention:
    """Returns the policy of the tenant."""
    row = first(await tx.fetch(_READ, {"tenant": tx.tenant_id}))
    return Retention.of(row[0] if row else {})


async def write_policy(tx: Transaction, retention: Retention) -> None:
    """Replaces the policy of the tenant."""
    values = {"tenant": tx.tenant_id, "retention": retention.as_json()}
    await tx.execute(_WRITE, values)
    await begin(tx)


async def due_tenants(tx: Transaction, limit: int) -> Sequence[UUID]:
    """Returns tenants whose turn it is, the longest overdue first. Needs `Database.sweeping`."""
    return [row[0] for row in await tx.fetch(_DUE, (limit,))]


async def claim(tx: Transaction, seconds: float) -> RetentionTurn | None:
    """Claims the tenant's turn; None when another worker has it."""
    lease_id = uuid4()
    values = {"tenant": tx.tenant_id, "lease": lease_id, "seconds": seconds}
    row = first(await tx.fetch(_CLAIM, values))
    return None if row is None else RetentionTurn(lease_id=lease_id, after_name=row.after_name)


async def renew(
    tx: Transaction, lease_id: UUID, seconds: float, *, after_name: str | None = None
) -> None:
    """Renews the lease, with the progress of the pass if it is given. Raises TurnLost."""
    values = {"tenant": tx.tenant_id, "lease": lease_id, "seconds": seconds, "name": after_name}
    if await tx.execute(_RENEW, values) != 1:
        raise TurnLost


async def end(tx: Transaction, lease_id: UUID, next_seconds: float) -> None:
    """Ends a complete pass; the next one is due in `next_seconds`. Raises TurnLost."""
    values = {"tenant": tx.tenant_id, "lease": lease_id, "seconds": next_seconds}
    if await tx.execute(_END, values) != 1:
        raise TurnLost


async def seconds_since_last(tx: Transaction) -> float | None:
    """Returns how long ago the last complete pass ended, or the first one was due.

    None when the tenant has no policy, nor any of its sessions.
    """
    row = first(await tx.fetch(_AGE, {"tenant": tx.tenant_id}, prepare=None))
    return None if row is None else row[0]
