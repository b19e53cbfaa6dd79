"""Creates, reads and lists memories."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any
from uuid import UUID

from psycopg.types.json import Jsonb

from service.domain.memories.specs import spec_from_json
from service.domain.values.memory_specs import MemorySpec, MemoryStatus
from storage.engine.database import Transaction


@dataclass(frozen=True, kw_only=True, slots=True)
class Stall:
    """Why a memory gave up, and where."""

    #: First position of the step that failed.
    position: int
    cause: str
    attempts: int
    created_at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredMemory:
    """A memory's row, with its session's head of the same moment."""

    session_key: UUID
    memory_id: UUID
    session_name: str
    name: str
    kind: str
    #: With the schema as it is now.
    spec: MemorySpec
    revision: int
    applied_position: int
    head: int
    incarnation: int
    #: "active", "stalled" or "sealed".
    status: str
    created_at: datetime
    #: The name of the memory that this one was rebuilt from; None when it was not.
    rebuilt_from: str | None
    #: A consolidation is wanted once everything up to here is read.
    consolidate_position: int | None
    #: The message of the budget that does not allow its next call; None when one is allowed.
    held_reason: str | None
    #: A tree is closed once everything up to here is in it; None when that was not requested.
    seal_position: int | None
    #: There is nothing to do with what is in the log.
    is_idle: bool
    #: Why its model does not reply now; None when it does not wait for that.
    waiting_cause: str | None
    #: What rejections of its steps mean for readers: see `service.domain.prism.losses`.
    losses: Mapping[str, Any] | None
    stall: Stall | None

    @property
    def shown_status(self) -> MemoryStatus:
        """Returns what it is doing, as the API reports it."""
        if self.status != "active":
            return MemoryStatus(self.status)
        if self.held_reason is not None:
            return MemoryStatus.OVER_BUDGET
        if self.waiting_cause is not None:
            return MemoryStatus.WAITING
        return MemoryStatus.ACTIVE


#: The index of the kind in a row.
_KIND = 4


def from_row(row: Sequence[Any]) -> StoredMemory:
    """Returns a memory from a row of this module's queries."""
    *before, spec, schema_source = row[:7]
    *after, position, cause, attempts, at = row[7:]
    fields = (*before, spec_from_json(before[_KIND], spec, schema_source), *after)
    return StoredMemory(
        **dict(zip(StoredMemory.__dataclass_fields__, fields, strict=False)),
        stall=None
        if position is None
        else Stall(position=position + 1, cause=cause, attempts=attempts, created_at=at),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class CreatedMemory:
    """A memory that was created now."""

    memory: StoredMemory
    #: How many memories its session has with it.
    count: int


class Unmade(Enum):
    """Why a memory was not created."""

    TAKEN = "the session has one of this name"
    BEING_DELETED = "one of this name was deleted, and has rows still"


async def create(
    tx: Transaction,
    *,
    session_key: UUID,
    memory_id: UUID,
    name: str,
    spec: MemorySpec,
    head: int,
    digest: bytes,
    value: str | None = None,
    rebuilt_from: str | None = None,
) -> CreatedMemory | Unmade:
    """Creates a memory at revision 0, in one round trip, unless its name is not free.

    Only a PRISM memory has a `value`. The caller has the session from `sessions.lock_alone`.
    """
    values = {
        "session": session_key,
        "memory": memory_id,
        "tenant": tx.tenant_id,
        "name": name,
        "kind": spec.kind,
        "spec": Jsonb(spec.to_json()),
        "digest": digest,
        "value": value,
        "has_work": head > 0,
        "rebuilt_from": rebuilt_from,
    }
    ((made, is_going),), ((count,),), rows = await tx.pipeline((_CREATE, _COUNT, READ_ROW), values)
    if made:
        return CreatedMemory(memory=from_row(rows[0]), count=count)
    return Unmade.BEING_DELETED if is_going else Unmade.TAKEN


async def create_first(
    tx: Transaction,
    keys: Sequence[tuple[UUID, UUID]],
    *,
    name: str,
    spec: MemorySpec,
    digest: bytes,
    value: str | None,
) -> int:
    """Creates memories (session_key, memory_id) of one name, in one round trip.

    Leaves out sessions that have a memory; returns how many it created. The caller has the
    sessions locked, and gives the memories work.
    """
    values = {
        "sessions": [key for key, _ in keys],
        "memories": [memory_id for _, memory_id in keys],
        "tenant": tx.tenant_id,
        "name": name,
        "kind": spec.kind,
        "spec": Jsonb(spec.to_json()),
        "digest": digest,
        "value": value,
    }
    rows = await tx.fetch(_CREATE_FIRST, values)
    return int(rows[0][0])


async def get(tx: Transaction, session_key: UUID, memory_id: UUID) -> StoredMemory | None:
    """Reads a memory's row; None when there is none."""
    rows = await tx.fetch(READ_ROW, {"session": session_key, "memory": memory_id})
    return from_row(rows[0]) if rows else None


async def find_kind(tx: Transaction, session_key: UUID, memory_id: UUID) -> str | None:
    """Returns the kind of a memory; None when there is none."""
    query = "SELECT kind FROM memory WHERE session_key = %s AND memory_id = %s"
    found = await tx.fetch(query, (session_key, memory_id))
    return found[0][0] if found else None


# After `ready_at` a memory is about to try again.
_HELD = "CASE WHEN m.ready_at > now() THEN m.held_reason END"
_WAITING = "CASE WHEN m.ready_at > now() THEN m.waiting_cause END"

#: SQL of a memory's columns for `from_row`, of their tables, and of its key, whose values are
#: `session` and `memory`.
COLUMNS = f"""m.session_key, m.memory_id, s.name, m.name, m.kind, m.spec, m.schema_source,
    m.revision, m.applied_position, s.head, s.incarnation, m.status, m.created_at,
    m.rebuilt_from, m.consolidate_position,
    {_HELD}, m.seal_position, NOT m.has_work OR m.resting, {_WAITING}, m.losses,
    d.from_position, d.cause, d.attempts, d.created_at"""

FROM = """FROM memory m
JOIN session s ON s.session_key = m.session_key
LEFT JOIN dead_letter d ON d.session_key = m.session_key AND d.memory_id = m.memory_id
    AND d.resolution IS NULL"""

WHERE = "WHERE m.session_key = %(session)s AND m.memory_id = %(memory)s"

# The first revision of the memories in `made`.
_ROOTS = """root AS (
    INSERT INTO revision (session_key, memory_id, tenant_id, revision, from_position, to_position,
                          kind, epoch, digest)
    SELECT session_key, memory_id, tenant_id, 0, 0, 0, 'create', epoch, %(digest)s FROM made
), keys AS (
    SELECT session_key, memory_id, tenant_id FROM made
), base AS (
    INSERT INTO prism_base (session_key, memory_id, tenant_id, revision, value)
    SELECT keys.*, 0, %(value)s FROM keys WHERE %(value)s::text IS NOT NULL
), newest AS (
    INSERT INTO prism_value (session_key, memory_id, tenant_id, revision, value)
    SELECT keys.*, 0, %(value)s FROM keys WHERE %(value)s::text IS NOT NULL
)"""
_CREATE = f"""
WITH made AS (
    INSERT INTO memory (session_key, memory_id, tenant_id, name, kind, spec, has_work,
                        rebuilt_from, epoch)
    VALUES (%(session)s, %(memory)s, %(tenant)s, %(name)s, %(kind)s, %(spec)s, %(has_work)s,
        %(rebuilt_from)s, (SELECT first_epoch FROM session WHERE session_key = %(session)s))
    ON CONFLICT (session_key, memory_id) DO NOTHING
    RETURNING session_key, memory_id, tenant_id, epoch
), {_ROOTS}
SELECT EXISTS (SELECT FROM made), EXISTS (
    SELECT FROM removal WHERE session_key = %(session)s AND item_id = %(memory)s
)
"""  # noqa: S608 - all of it is ours
# The append that makes it gives it work. A statement of its own sees what was committed while the
# transaction waited for the lock of the session.
_CREATE_FIRST = f"""
WITH made AS (
    INSERT INTO memory (session_key, memory_id, tenant_id, name, kind, spec, epoch)
    SELECT t.session_key, t.memory_id, %(tenant)s, %(name)s, %(kind)s, %(spec)s,
        (SELECT first_epoch FROM session s WHERE s.session_key = t.session_key)
    FROM unnest(%(sessions)s::uuid[], %(memories)s::uuid[]) AS t (session_key, memory_id)
    WHERE NOT EXISTS (SELECT FROM memory m WHERE m.session_key = t.session_key)
    ON CONFLICT (session_key, memory_id) DO NOTHING
    RETURNING session_key, memory_id, tenant_id, epoch
), {_ROOTS}
SELECT count(*) FROM made
"""  # noqa: S608 - all of it is ours
_COUNT = "SELECT count(*) FROM memory WHERE session_key = %(session)s"

_READ_NEWEST = f"""
SELECT {COLUMNS}, v.value {FROM}
LEFT JOIN prism_value v ON v.session_key = m.session_key AND v.memory_id = m.memory_id
{WHERE}
"""

#: Reads a memory's row, for `from_row`; its values are `session` and `memory`.
READ_ROW = f"SELECT {COLUMNS} {FROM} {WHERE}"


async def read_newest(
    tx: Transaction, session_key: UUID, memory_id: UUID
) -> tuple[StoredMemory, str | None] | None:
    """Returns a memory and its newest value as canonical JSON, in one round trip.

    The value is None unless it is a PRISM memory.
    """
    rows = await tx.fetch(_READ_NEWEST, {"session": session_key, "memory": memory_id})
    if not rows:
        return None
    *columns, value = rows[0]
    return from_row(columns), value


_LIST = f"""
SELECT {COLUMNS} {FROM}
WHERE m.session_key = %(session)s AND m.name COLLATE "C" > %(name)s
ORDER BY m.name COLLATE "C" LIMIT %(limit)s
"""


async def list_all(tx: Transaction, session_key: UUID) -> Sequence[StoredMemory]:
    """Returns the memories of a session by name."""
    return await list_after(tx, session_key, "", None)


async def list_after(
    tx: Transaction, session_key: UUID, name: str, limit: int | None
) -> Sequence[StoredMemory]:
    """Returns up to `limit` memories of a session after `name`; None: all.

    In the order of the bytes of their names.
    """
    values = {"session": session_key, "name": name, "limit": limit}
    return [from_row(row) for row in await tx.fetch(_LIST, values, prepare=None)]


#: The memories whose `shown_status` is this one, by conditions that indexes have where one can.
_OF_STATUS = {
    # There is an index of open letters, and none of statuses.
    MemoryStatus.STALLED: "m.status = 'stalled' AND d.letter_id IS NOT NULL",
    MemoryStatus.SEALED: "m.status = 'sealed'",
    MemoryStatus.OVER_BUDGET: f"m.held_reason IS NOT NULL AND m.status = 'active'"
    f" AND {_HELD} IS NOT NULL",
    MemoryStatus.WAITING: f"m.has_work AND m.status = 'active' AND {_WAITING} IS NOT NULL"
    f" AND {_HELD} IS NULL",
    MemoryStatus.ACTIVE: f"m.status = 'active' AND {_WAITING} IS NULL AND {_HELD} IS NULL",
}


async def list_of_all(
    tx: Transaction,
    *,
    status: MemoryStatus | None,
    after: tuple[UUID, UUID] | None,
    limit: int,
) -> Sequence[StoredMemory]:
    """Returns up to `limit` memories of all sessions after a key, by key."""
    conditions = ["m.tenant_id = %(tenant)s"]
    if status is not None:
        conditions.append(_OF_STATUS[status])
    if after is not None:
        conditions.append("(m.session_key, m.memory_id) > (%(session)s, %(memory)s)")
    session_key, memory_id = after or (None, None)
    values = {"tenant": tx.tenant_id, "session": session_key, "memory": memory_id, "limit": limit}
    query = f"""SELECT {COLUMNS} {FROM} WHERE {" AND ".join(conditions)}
        ORDER BY m.session_key, m.memory_id LIMIT %(limit)s"""
    return [from_row(row) for row in await tx.fetch(query, values, prepare=False)]
