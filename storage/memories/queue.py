"""The queue of workers: what is runnable, in whose hands it is, and who goes first.

The tables of memories, answers, schema drafts and sessions say what there is to do; here are
only claims, one for each item that a worker has in hand. They save work and are no guarantee:
who commits is settled by epochs and keys.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from uuid import UUID

from service.domain.values.work_items import WorkItem, WorkKind
from storage.engine.database import Database

#: On it workers are told that there is work.
CHANNEL = "palimpsest_work"
#: What became ready so lately, in seconds, need not wait for all that is older.
RECENT_SECONDS = 10.0
#: How long somebody counts as waiting for a memory after having said so, in seconds.
WANTED_SECONDS = 60.0
#: Said again within so long, in seconds, it changes nothing: who came first goes first, and many
#: readers of one memory rewrite no row. Late enough, too, for one that was said again to be lost.
RENEW_SECONDS = 30.0
#: What a worker took so long ago without knowing of it was lost with a connection, in seconds.
LOST_SECONDS = 10.0
#: Tenants that one look at a work class tries at the most.
LOOK_TENANTS = 256

NOBODY = UUID(int=0)


class WorkClass(StrEnum):
    """Where an item was found. Memories may be in three of them."""

    #: Somebody waits for the memory.
    WANTED = "wanted"
    ANSWERS = "answers"
    SCHEMAS = "schemas"
    #: Memories that became ready within RECENT_SECONDS; the newest first.
    RECENT = "recent"
    #: All memories; those first that have been ready for longest.
    BACKLOG = "backlog"
    #: Sessions whose chunks are to be indexed.
    INDEX = "index"
    #: What was deleted and still has rows.
    REMOVALS = "removals"


@dataclass(frozen=True, kw_only=True, slots=True)
class Done:
    """An item that is no longer in hand."""

    item: WorkItem
    #: Whether there is more to do: who waits for it goes on waiting.
    more: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueScan:
    """A work class to be looked at."""

    work_class: WorkClass
    #: Items to be taken at the most.
    quota: int
    #: The tenants have turns from the one behind this one on.
    after: UUID


@dataclass(frozen=True, kw_only=True, slots=True)
class Bound:
    """Of some work classes together no more than so many items are taken."""

    work_classes: Collection[WorkClass]
    items: int


#: No work class has one.
UNBOUND = Bound(work_classes=(), items=0)


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueBatch:
    """What a look at the work classes brought."""

    #: Now in hand, with the work class where each was found.
    items: Sequence[tuple[WorkClass, WorkItem]]
    #: For the next look: the tenant at which each work class ended.
    ended: Mapping[WorkClass, UUID]
    #: Whether a work class was left before all of its tenants were tried.
    more: bool


_RELEASE = """
WITH done AS (
    SELECT * FROM unnest(
            %(kinds)s::text[], %(sessions)s::uuid[], %(items)s::uuid[], %(more)s::bool[])
        AS t (kind, session_key, item_id, more)
), unwanted AS (
    DELETE FROM wanted USING done
    WHERE wanted.session_key = done.session_key AND wanted.memory_id = done.item_id
        AND done.kind = 'memory' AND NOT done.more
)
DELETE FROM claim USING done
WHERE claim.session_key = done.session_key AND claim.item_id = done.item_id
    AND claim.kind = done.kind AND claim.worker_id = %(worker)s
"""

TAKE = """
SELECT lane, kind, tenant_id, session_key, item_id FROM take_work(
    %(worker)s, %(lanes)s::text[], %(quotas)s::integer[], %(after)s::uuid[], %(total)s::integer,
    %(bounded)s::text[], %(bound)s::integer, %(recent_seconds)s, %(tenants)s::integer)
"""

_CLAIM = """
INSERT INTO claim (kind, session_key, item_id, worker_id)
SELECT t.*, %(worker)s::uuid
FROM unnest(%(kinds)s::text[], %(sessions)s::uuid[], %(items)s::uuid[]) AS t
ORDER BY 2, 3, 1
ON CONFLICT DO NOTHING
RETURNING kind, session_key, item_id
"""

# By their places, which are read in order: two batches that meet wait for each other's rows.
_OUTDATE = """
DELETE FROM wanted WHERE ctid = ANY(ARRAY(
    SELECT w.ctid FROM wanted w
    JOIN unnest(%(sessions)s::uuid[], %(items)s::uuid[]) AS t (session_key, memory_id)
        USING (session_key, memory_id)
    WHERE w.wanted_at < clock_timestamp() - make_interval(secs => %(renew)s)))
"""
# In the order of their keys, for the same reason.
_WANT = """
INSERT INTO wanted (session_key, memory_id, tenant_id)
SELECT * FROM unnest(%(sessions)s::uuid[], %(items)s::uuid[], %(tenants)s::uuid[])
ORDER BY 1, 2
ON CONFLICT (session_key, memory_id) DO NOTHING
"""

# Whoever was taken for dead, or whose claims a crash of the server took, claims again what
# he has in hand; what somebody else has by now he shares, and one of both is fenced.
_BEAT = """
WITH known AS (
    UPDATE worker SET beat_at = clock_timestamp() WHERE worker_id = %(worker)s RETURNING true
), lost AS (
    -- Taken for it by a look that it was never told the end of.
    DELETE FROM claim USING known
    WHERE worker_id = %(worker)s
        AND claimed_at < clock_timestamp() - make_interval(secs => %(lost)s)
        AND NOT EXISTS (
            SELECT FROM unnest(%(kinds)s::text[], %(sessions)s::uuid[], %(items)s::uuid[])
                AS held (kind, session_key, item_id)
            WHERE held.kind = claim.kind AND held.session_key = claim.session_key
                AND held.item_id = claim.item_id)
), new AS (
    INSERT INTO worker (worker_id) SELECT %(worker)s::uuid WHERE NOT EXISTS (SELECT FROM known)
    ON CONFLICT (worker_id) DO NOTHING
)
INSERT INTO claim (kind, session_key, item_id, worker_id)
SELECT t.*, %(worker)s::uuid
FROM unnest(%(kinds)s::text[], %(sessions)s::uuid[], %(items)s::uuid[]) AS t
WHERE NOT EXISTS (SELECT FROM known)
ORDER BY 2, 3, 1
ON CONFLICT DO NOTHING
"""

# The second needs to see what the first did.
_BURY = """
DELETE FROM worker WHERE worker_id IN (
    SELECT worker_id FROM worker
    WHERE beat_at < clock_timestamp() - make_interval(secs => %(dead)s)
    ORDER BY worker_id FOR UPDATE SKIP LOCKED)
"""
_FREE = """
DELETE FROM claim WHERE NOT EXISTS (SELECT FROM worker WHERE worker.worker_id = claim.worker_id)
RETURNING true
"""
# Each memory by its key, whatever statistics say.
_FORGET = """
DELETE FROM wanted USING (
    SELECT w.session_key, w.memory_id FROM wanted w LEFT JOIN LATERAL (
        SELECT has_work, status FROM memory
        WHERE memory.session_key = w.session_key AND memory.memory_id = w.memory_id OFFSET 0
    ) AS m ON m.has_work AND m.status = 'active'
    WHERE m.has_work IS NULL OR w.wanted_at < clock_timestamp() - make_interval(secs => %(wanted)s)
) AS gone
WHERE wanted.session_key = gone.session_key AND wanted.memory_id = gone.memory_id
"""

_LEAVE = "DELETE FROM claim WHERE worker_id = %(worker)s"
_SIGN_OFF = "DELETE FROM worker WHERE worker_id = %(worker)s"

_COUNT = """
WITH ready AS (
    SELECT ready_at FROM memory
    WHERE has_work AND status = 'active' AND ready_at > '-infinity' AND ready_at <= now()
    UNION ALL
    SELECT ready_at FROM answer
    WHERE status = 'pending' AND ready_at > '-infinity' AND ready_at <= now()
    UNION ALL
    SELECT ready_at FROM schema_draft
    WHERE status = 'pending' AND ready_at > '-infinity' AND ready_at <= now()
    UNION ALL
    SELECT index_ready_at FROM session
    WHERE has_unindexed AND index_ready_at > '-infinity' AND index_ready_at <= now()
    UNION ALL
    SELECT ready_at FROM removal WHERE ready_at > '-infinity' AND ready_at <= now()
)
SELECT count(*), coalesce(extract(epoch FROM now() - min(ready_at)), 0)::float8,
    (SELECT count(*) FROM claim),
    (SELECT count(*) FROM worker
     WHERE beat_at >= now() - make_interval(secs => %(dead)s)),
    (SELECT count(*) FROM worker
     WHERE beat_at < now() - make_interval(secs => %(dead)s))
FROM ready
"""


async def take(
    database: Database,
    worker: UUID,
    *,
    done: Sequence[Done],
    looks: Sequence[QueueScan],
    total: int,
    bound: Bound = UNBOUND,
) -> QueueBatch:
    """Gives back what is `done`, and takes up to `total` items of the work classes, in their order.

    In one round trip, and one transaction that writes no log. Raises StorageError.
    """
    statements: list[str] = []
    if done:
        statements.append(_RELEASE)
    if looks:
        statements.append(TAKE)
    if not statements:
        return QueueBatch(items=(), ended={}, more=False)
    values = take_values(worker, done=done, looks=looks, total=total, bound=bound)
    *_, rows = await database.swept(statements, values, name="queue.claim")
    items: list[tuple[WorkClass, WorkItem]] = []
    ended: dict[WorkClass, UUID] = {}
    more = False
    for work_class, kind, tenant_id, session_key, item_id in rows if looks else ():
        if item_id is None:
            ended[WorkClass(work_class)] = tenant_id
            more = more or kind == "more"
            continue
        item = WorkItem(
            kind=WorkKind(kind), tenant_id=tenant_id, session_key=session_key, item_id=item_id
        )
        items.append((WorkClass(work_class), item))
    return QueueBatch(items=items, ended=ended, more=more)


def take_values(
    worker: UUID, *, done: Sequence[Done], looks: Sequence[QueueScan], total: int, bound: Bound
) -> dict[str, object]:
    """What TAKE is sent with, and what gives back what is done."""
    return {
        "worker": worker,
        **_columns(one.item for one in done),
        "more": [one.more for one in done],
        "lanes": [look.work_class.value for look in looks],
        "quotas": [look.quota for look in looks],
        "after": [look.after for look in looks],
        "total": total,
        "bounded": [work_class.value for work_class in bound.work_classes],
        "bound": bound.items,
        "recent_seconds": RECENT_SECONDS,
        "tenants": LOOK_TENANTS,
    }


async def claim(database: Database, worker: UUID, items: Sequence[WorkItem]) -> Sequence[WorkItem]:
    """Takes items by their keys; those that nobody had in hand. Raises StorageError."""
    (rows,) = await database.swept((_CLAIM,), {"worker": worker, **_columns(items)})
    taken = set(rows)
    return [one for one in items if (one.kind.value, one.session_key, one.item_id) in taken]


async def want(database: Database, memories: Sequence[WorkItem]) -> None:
    """Says that somebody waits for memories, for WANTED_SECONDS. Raises StorageError."""
    values = {
        **_columns(memories),
        "tenants": [one.tenant_id for one in memories],
        "renew": RENEW_SECONDS,
    }
    # Each a transaction of its own: one that deletes rows and then adds some could wait for
    # another that waits for it.
    await database.swept((_OUTDATE,), values)
    await database.swept((_WANT,), values)


async def beat(database: Database, worker: UUID, in_hand: Sequence[WorkItem]) -> None:
    """Says that a worker lives, and what it has in hand. Raises StorageError."""
    values = {"worker": worker, "lost": LOST_SECONDS, **_columns(in_hand)}
    await database.swept((_BEAT,), values)


async def sweep(database: Database, *, dead_after_seconds: float) -> int:
    """Frees what dead workers had in hand, and forgets who waited; returns how many were freed.

    Raises StorageError.
    """
    values = {"dead": dead_after_seconds, "wanted": WANTED_SECONDS}
    _, freed, _ = await database.swept((_BURY, _FREE, _FORGET), values, name="queue.sweep")
    return len(freed)


async def leave(database: Database, worker: UUID) -> None:
    """Gives back all that a worker has in hand, and says that it is gone. Raises StorageError."""
    await database.swept((_LEAVE, _SIGN_OFF), {"worker": worker})


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueFacts:
    """What waits, what runs, and who lives."""

    #: Items that could be worked on now, also those in hand.
    ready: int
    #: How long the oldest of them has been ready, in seconds; 0 when there is none.
    oldest_seconds: float
    #: Items that workers have in hand.
    running: int
    #: Workers that say that they live, and workers that fell silent.
    workers: int
    silent: int


async def read_facts(database: Database, *, dead_after_seconds: float) -> QueueFacts:
    """Counts all of it: it costs what there is to do. Raises StorageError."""
    ((row,),) = await database.swept((_COUNT,), {"dead": dead_after_seconds})
    ready, oldest, running, workers, silent = row
    return QueueFacts(
        ready=ready, oldest_seconds=oldest, running=running, workers=workers, silent=silent
    )


def _columns(items: Iterable[WorkItem]) -> dict[str, list[object]]:
    listed = list(items)
    return {
        "kinds": [one.kind.value for one in listed],
        "sessions": [one.session_key for one in listed],
        "items": [one.item_id for one in listed],
    }
