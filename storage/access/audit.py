"""Writes and reads the audit log of a tenant."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from psycopg.types.json import Jsonb

from service.domain.access.audit import (
    NO_DIGEST,
    AuditAction,
    AuditEntry,
    AuditEvent,
    digest_of,
    portable,
)
from service.domain.access.identity import current_principal
from storage.engine.database import Transaction, first

#: The principal of what the service does by itself.
SERVICE = "service"

_LOCK = """
INSERT INTO audit_head (tenant_id, sequence, digest) VALUES (%s, 0, %s)
ON CONFLICT (tenant_id) DO NOTHING
"""
_HEAD = "SELECT sequence, digest FROM audit_head WHERE tenant_id = %s FOR UPDATE"
_MOVE = "UPDATE audit_head SET sequence = %s, digest = %s WHERE tenant_id = %s"
_APPEND = """
INSERT INTO audit_event (tenant_id, sequence, occurred_at, principal, action, session, memory,
    target, details, digest)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s)
"""


async def record(tx: Transaction, entry: AuditEntry, *, principal: str | None = None) -> None:
    """Appends an event to the log of the transaction's tenant, in the transaction of the action.

    Events of a tenant wait for each other until the transaction ends: record late in it, after
    the locks of what the action changes. `principal`: by default that of the current call.
    """
    await tx.execute(_LOCK, (tx.tenant_id, NO_DIGEST))
    sequence, before = (await tx.fetch(_HEAD, (tx.tenant_id,)))[0]
    event = AuditEvent(
        tenant_id=tx.tenant_id,
        sequence=sequence + 1,
        occurred_at=datetime.now(UTC),
        principal=principal or current_principal(SERVICE),
        entry=replace(entry, details=portable(entry.details)),
    )
    event = replace(event, digest=digest_of(event, bytes(before)))
    await tx.execute(_APPEND, _values(event))
    await tx.execute(_MOVE, (event.sequence, event.digest, tx.tenant_id))


def _values(event: AuditEvent) -> Sequence[Any]:
    entry = event.entry
    ids = (entry.session, entry.memory, entry.target)
    return (
        *(event.tenant_id, event.sequence, event.occurred_at, event.principal, entry.action),
        *(*ids, Jsonb(dict(entry.details)), event.digest),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditFilter:
    """Which events are listed; empty or None means all."""

    #: An action, or the beginning of one: `key.` for all that is about keys.
    action: str = ""
    session: str = ""
    principal: str = ""
    first_time: datetime | None = None
    last_time: datetime | None = None


_LIST = """
SELECT tenant_id, sequence, occurred_at, principal, action, session, memory, target, details, digest
FROM audit_event WHERE {conditions} ORDER BY sequence {order} LIMIT %(limit)s
"""


async def list_events(
    tx: Transaction, wanted: AuditFilter, *, after: int, newest_first: bool, limit: int
) -> Sequence[AuditEvent]:
    """Returns up to `limit` events after a sequence in the order that is asked for.

    0 begins at the first, or at the newest.
    """
    conditions = ["tenant_id = %(tenant)s"]
    if after:
        conditions.append(f"sequence {'<' if newest_first else '>'} %(after)s")
    for name, condition in (
        ("action", "starts_with(action, %(action)s)"),
        ("session", "session = %(session)s"),
        ("principal", "principal = %(principal)s"),
        ("first_time", "occurred_at >= %(first_time)s"),
        ("last_time", "occurred_at <= %(last_time)s"),
    ):
        if getattr(wanted, name):
            conditions.append(condition)
    statement = _LIST.format(
        conditions=" AND ".join(conditions), order="DESC" if newest_first else "ASC"
    )
    rows = await tx.fetch(
        statement,
        {
            "tenant": tx.tenant_id,
            "after": after,
            "limit": limit,
            **{name: getattr(wanted, name) for name in AuditFilter.__dataclass_fields__},
        },
        prepare=None,
    )
    return [_event(row) for row in rows]


async def head(tx: Transaction) -> tuple[int, bytes]:
    """Returns sequence and digest of the newest event; 0 and NO_DIGEST without one."""
    row = first(await tx.fetch("SELECT sequence, digest FROM audit_head"))
    return (0, NO_DIGEST) if row is None else (row.sequence, bytes(row.digest))


def _event(row: Any) -> AuditEvent:
    entry = AuditEntry(
        action=_known(row.action),
        session=row.session,
        memory=row.memory,
        target=row.target,
        details=row.details,
    )
    return AuditEvent(
        tenant_id=row.tenant_id,
        sequence=row.sequence,
        occurred_at=row.occurred_at,
        principal=row.principal,
        entry=entry,
        digest=bytes(row.digest),
    )


def _known(action: str) -> Any:
    """Returns the action; the text where a later release wrote one that this does not know."""
    try:
        return AuditAction(action)
    except ValueError:
        return action
