"""Notes which quarantines and releases of sources each memory has yet to apply.

The transaction that changes a source writes them to all memories of the session; each memory
applies them in a transaction of its own, which clears them. Until then no step of it begins, so
that none reads what the source wrote, and a release finds the log as the quarantine left it.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from storage.engine.claims import Claim
from storage.engine.database import Transaction


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceChange:
    """A quarantine or a release of a source."""

    source: str
    #: When a source that is released was quarantined. None: it is quarantined.
    since: datetime | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ChangedMemory:
    """A memory of a session whose sources have changed."""

    memory_id: UUID
    name: str
    kind: str
    revision: int


# Of one source the last change counts: a quarantine that a memory has not applied is none for it.
_ADD = """
UPDATE memory SET epoch = epoch + 1, has_source_changes = true, source_changes = (
    SELECT coalesce(jsonb_agg(c), '[]')
    FROM jsonb_array_elements(coalesce(source_changes, '[]')) AS c
    WHERE c ->> 'source' <> %(source)s) || %(change)s::jsonb
WHERE session_key = %(session)s
RETURNING memory_id, name, kind, revision
"""
_IS_RELEASING = """
SELECT EXISTS (
    SELECT FROM memory CROSS JOIN LATERAL jsonb_array_elements(source_changes) AS c
    WHERE session_key = %(session)s AND has_source_changes
        AND c ->> 'source' = %(source)s AND c ->> 'since' IS NOT NULL)
"""
# They are late until they have applied it.
_AWAIT = """
UPDATE memory SET has_work = true, resting = false, ready_at = least(ready_at, now())
WHERE session_key = %(session)s AND has_source_changes AND status = 'active'
"""
_NAMES = """
SELECT name FROM memory
WHERE session_key = %(session)s AND tenant_id = %(tenant)s AND has_source_changes
ORDER BY name COLLATE "C"
"""
_PENDING = """
SELECT tenant_id, session_key, memory_id FROM memory
WHERE has_source_changes LIMIT %(limit)s
"""
_LOCK = """
SELECT true FROM memory
WHERE session_key = %(session)s AND memory_id = %(memory)s AND has_source_changes
FOR UPDATE SKIP LOCKED
"""
_CLEAR = """
UPDATE memory SET source_changes = NULL, has_source_changes = false
WHERE session_key = %(session)s AND memory_id = %(memory)s
"""


async def add(tx: Transaction, session_key: UUID, change: SourceChange) -> Sequence[ChangedMemory]:
    """Notes a change for all memories of a session, and fences off the work on them.

    What is under way may have read the source before. Returns them by name.
    """
    since = None if change.since is None else change.since.isoformat()
    stored = json.dumps([{"source": change.source, "since": since}])
    values = {"session": session_key, "source": change.source, "change": stored}
    rows = await tx.fetch(_ADD, values)
    tx.changed.update(row.memory_id for row in rows)
    found = [
        ChangedMemory(memory_id=row.memory_id, name=row.name, kind=row.kind, revision=row.revision)
        for row in rows
    ]
    return sorted(found, key=lambda one: one.name)


async def is_releasing(tx: Transaction, session_key: UUID, source: str) -> bool:
    """Returns whether a memory of a session has yet to apply a release of a source."""
    values = {"session": session_key, "source": source}
    return bool((await tx.fetch(_IS_RELEASING, values))[0][0])


async def make_late(tx: Transaction, session_key: UUID) -> None:
    """Gives work to the memories of a session that have yet to apply a change."""
    await tx.execute(_AWAIT, {"session": session_key})


async def list_names(tx: Transaction, session_key: UUID) -> Sequence[str]:
    """Returns the names of a session's memories that have yet to apply a change."""
    values = {"session": session_key, "tenant": tx.tenant_id}
    return [row.name for row in await tx.fetch(_NAMES, values)]


async def list_pending(tx: Transaction, limit: int) -> Sequence[tuple[UUID, UUID, UUID]]:
    """Returns memories with changes to apply: tenants, sessions and ids. For a sweep."""
    return [(row[0], row[1], row[2]) for row in await tx.fetch(_PENDING, {"limit": limit})]


async def lock(tx: Transaction, session_key: UUID, memory_id: UUID) -> bool:
    """Locks a memory with changes; False without any, or while another worker applies them."""
    return bool(await tx.fetch(_LOCK, {"session": session_key, "memory": memory_id}))


def of(held: Claim) -> Sequence[SourceChange]:
    """Returns the changes that a memory has yet to apply, oldest first."""
    return [_change(one) for one in held.source_changes or ()]


async def clear(tx: Transaction, held: Claim) -> None:
    """Removes the changes of a memory, which has applied them."""
    await tx.execute(_CLEAR, {"session": held.session_key, "memory": held.memory_id})
    tx.changed.add(held.memory_id)


def _change(stored: Any) -> SourceChange:
    since = stored["since"]
    return SourceChange(
        source=stored["source"], since=None if since is None else datetime.fromisoformat(since)
    )
