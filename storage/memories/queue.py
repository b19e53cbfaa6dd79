"""The work queue: runnable items, their claims, and their order.

The tables of memories, answers, schema drafts and sessions say what there is to do; the queue has
only claims, one for each item that a worker has taken. They save work and are no guarantee: epochs
and keys decide which worker commits.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from uuid import UUID

from service.domain.values.work_items import WorkItem, WorkKind
from storage.engine.database import Database

#: The channel of signals to workers.
CHANNEL = "palimpsest_work"
#: Items that became ready so recently, in seconds, need not wait for all older ones.
RECENT_SECONDS = 10.0
#: How long a memory counts as wanted after a client asked for it, in seconds.
WANTED_SECONDS = 60.0
#: Asking again within so many seconds changes nothing: the first reader decides the order, and many
#: readers of one memory rewrite no row. Short enough that one repetition may be lost.
RENEW_SECONDS = 30.0
#: A claim that its worker does not know of was lost with a connection after so many seconds.
LOST_SECONDS = 10.0
#: Tenants that one scan considers; 5 µs each, in which no other worker claims.
SCAN_TENANTS = 64
#: The same of a scan after one that found nothing, and of a look whether others wait.
WIDE_SCAN_TENANTS = 256

NOBODY = UUID(int=0)


class WorkClass(StrEnum):
    """The order in which an item was found. Memories may be in three of them."""

    #: Memories that clients wait for.
    WANTED = "wanted"
    ANSWERS = "answers"
    SCHEMAS = "schemas"
    #: Memories that became ready within RECENT_SECONDS; the newest first.
    RECENT = "recent"
    #: All memories; the ones that have been ready for longest first.
    BACKLOG = "backlog"
    #: Sessions whose chunks are to be indexed.
    INDEX = "index"
    #: Deleted sessions and memories that still have rows.
    REMOVALS = "removals"


@dataclass(frozen=True, kw_only=True, slots=True)
class Done:
    """An item that its worker releases."""

    item: WorkItem
    #: Whether it has more to do, so that it stays wanted.
    more: bool
    #: How long it had a slot, and what was charged for it when it was claimed; 0: nothing.
    seconds: float = 0.0
    charged: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Bound:
    """Limits the items that are taken of some work classes together."""

    work_classes: Collection[WorkClass]
    items: int


#: Limits no work class.
UNBOUND = Bound(work_classes=(), items=0)


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueScan:
    """A scan for work of all tenants."""

    #: Items to claim at most.
    total: int
    #: The cycle in which the work classes of a tenant take turns.
    cycle: Sequence[WorkClass]
    bound: Bound
    #: The first one after this tenant goes first among those with equal rights.
    after: UUID
    #: Whether it considers WIDE_SCAN_TENANTS.
    is_wide: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class ClaimedItem:
    """An item that is now claimed."""

    work_class: WorkClass
    item: WorkItem
    #: The seconds of a slot that its tenant was charged; 0 for a tenant that is alone.
    charged: float


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueBatch:
    """The result of a scan."""

    items: Sequence[ClaimedItem]
    #: The last tenant that was considered.
    ended: UUID
    #: Whether there are more tenants after it.
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
SELECT lane, kind, tenant_id, session_key, item_id, charged FROM claim_work(
    %(worker)s, %(lanes)s::text[], %(total)s::integer, %(bounded)s::text[], %(bound)s::integer,
    %(recent_seconds)s, %(after)s, %(scanned)s::integer,
    %(tenants)s::uuid[], %(seconds)s::float8[], %(charged)s::float8[])
"""

_WAITS = "SELECT work_waits(%(tenants)s::uuid[], %(scanned)s::integer)"

_CLAIM = """
INSERT INTO claim (kind, session_key, item_id, worker_id)
SELECT t.*, %(worker)s::uuid
FROM unnest(%(kinds)s::text[], %(sessions)s::uuid[], %(items)s::uuid[]) AS t
ORDER BY 2, 3, 1
ON CONFLICT DO NOTHING
RETURNING kind, session_key, item_id
"""

# By ctid, in order, so that two batches cannot deadlock.
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

# A worker that was taken for dead, or lost its claims in a crash of the server, claims its items
# again; it shares those that another worker has by now, and one of both is fenced.
_BEAT = """
WITH known AS (
    UPDATE worker SET beat_at = clock_timestamp() WHERE worker_id = %(worker)s RETURNING true
), lost AS (
    -- Claimed by a scan whose result never arrived.
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
# Each memory by its key, whatever the statistics are.
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

# While no worker claims: it would add the rows again.
_FORGET_TENANTS = (
    "SELECT pg_advisory_xact_lock(1885432933)",
    """
    DELETE FROM tenant_turn WHERE tenant_id <> %(nobody)s
        AND NOT EXISTS (SELECT FROM tenant WHERE tenant.tenant_id = tenant_turn.tenant_id)
    """,
)

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
SELECT count(*) AS ready,
    coalesce(extract(epoch FROM now() - min(ready_at)), 0)::float8 AS oldest_seconds,
    (SELECT count(*) FROM claim) AS running,
    (SELECT count(*) FROM worker
     WHERE beat_at >= now() - make_interval(secs => %(dead)s)) AS workers,
    (SELECT count(*) FROM worker
     WHERE beat_at < now() - make_interval(secs => %(dead)s)) AS silent
FROM ready
"""


async def take(
    database: Database, worker: UUID, *, done: Sequence[Done], scan: QueueScan | None
) -> QueueBatch:
    """Releases what is `done`, and claims what the scan finds.

    In one round trip, and one transaction without write-ahead log. Raises StorageError.
    """
    statements: list[str] = []
    if done:
        statements.append(_RELEASE)
    if scan is not None:
        statements.append(TAKE)
    if not statements:
        return QueueBatch(items=(), ended=NOBODY, more=False)
    values = take_values(worker, done=done, scan=scan)
    *_, rows = await database.swept(statements, values, name="queue.claim")
    if scan is None:
        return QueueBatch(items=(), ended=NOBODY, more=False)
    *found, last = rows
    items = [
        ClaimedItem(
            work_class=WorkClass(row.lane),
            item=WorkItem(
                kind=WorkKind(row.kind),
                tenant_id=row.tenant_id,
                session_key=row.session_key,
                item_id=row.item_id,
            ),
            charged=row.charged,
        )
        for row in found
    ]
    return QueueBatch(items=items, ended=last.tenant_id, more=last.kind == "more")


def take_values(worker: UUID, *, done: Sequence[Done], scan: QueueScan | None) -> dict[str, object]:
    """Returns the values of TAKE and _RELEASE."""
    values = {
        "worker": worker,
        **_columns(one.item for one in done),
        "more": [one.more for one in done],
    }
    if scan is None:
        return values
    charged = [one for one in done if one.charged]
    return {
        **values,
        "tenants": [one.item.tenant_id for one in charged],
        "seconds": [one.seconds for one in charged],
        "charged": [one.charged for one in charged],
        "lanes": [work_class.value for work_class in scan.cycle],
        "total": scan.total,
        "bounded": [work_class.value for work_class in scan.bound.work_classes],
        "bound": scan.bound.items,
        "after": scan.after,
        "recent_seconds": RECENT_SECONDS,
        "scanned": WIDE_SCAN_TENANTS if scan.is_wide else SCAN_TENANTS,
    }


async def waits(database: Database, tenants: Collection[UUID]) -> bool:
    """Returns whether a tenant beside these has an item to claim. Raises StorageError."""
    values = {"tenants": list(tenants), "scanned": WIDE_SCAN_TENANTS}
    (((is_waiting,),),) = await database.swept((_WAITS,), values)
    return bool(is_waiting)


async def claim(database: Database, worker: UUID, items: Sequence[WorkItem]) -> Sequence[WorkItem]:
    """Claims items by their keys; returns those that had no claim. Raises StorageError."""
    (rows,) = await database.swept((_CLAIM,), {"worker": worker, **_columns(items)})
    taken = set(rows)
    return [one for one in items if (one.kind.value, one.session_key, one.item_id) in taken]


async def want(database: Database, memories: Sequence[WorkItem]) -> None:
    """Marks memories as wanted for WANTED_SECONDS. Raises StorageError."""
    values = {
        **_columns(memories),
        "tenants": [one.tenant_id for one in memories],
        "renew": RENEW_SECONDS,
    }
    # Two transactions: one that deletes rows and then adds some could deadlock with another.
    await database.swept((_OUTDATE,), values)
    await database.swept((_WANT,), values)


async def beat(database: Database, worker: UUID, in_hand: Sequence[WorkItem]) -> None:
    """Records that a worker is alive, and its claims. Raises StorageError."""
    values = {"worker": worker, "lost": LOST_SECONDS, **_columns(in_hand)}
    await database.swept((_BEAT,), values)


async def sweep(database: Database, *, dead_after_seconds: float) -> int:
    """Frees the claims of dead workers, and removes old wishes; returns how many claims it freed.

    Raises StorageError.
    """
    values = {"dead": dead_after_seconds, "wanted": WANTED_SECONDS}
    _, freed, _ = await database.swept((_BURY, _FREE, _FORGET), values, name="queue.sweep")
    return len(freed)


async def forget_tenants(database: Database) -> None:
    """Removes the turns of tenants that are gone. Raises StorageError."""
    await database.swept(_FORGET_TENANTS, {"nobody": NOBODY}, name="tenant-turns")


async def leave(database: Database, worker: UUID) -> None:
    """Releases all claims of a worker, and removes it. Raises StorageError."""
    await database.swept((_LEAVE, _SIGN_OFF), {"worker": worker})


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueFacts:
    """The sizes of the queue."""

    #: Items that are ready, claimed or not.
    ready: int
    #: How long the oldest of them has been ready, in seconds; 0 when there is none.
    oldest_seconds: float
    #: Claimed items.
    running: int
    #: Workers that report that they are alive, and workers that stopped.
    workers: int
    silent: int

    @property
    def queued(self) -> int:
        """Returns how many items are ready and not claimed."""
        return max(self.ready - self.running, 0)


async def read_facts(database: Database, *, dead_after_seconds: float) -> QueueFacts:
    """Counts all items: its cost grows with what there is to do. Raises StorageError."""
    ((row,),) = await database.swept((_COUNT,), {"dead": dead_after_seconds})
    return QueueFacts(**row._asdict())


def _columns(items: Iterable[WorkItem]) -> dict[str, list[object]]:
    listed = list(items)
    return {
        "kinds": [one.kind.value for one in listed],
        "sessions": [one.session_key for one in listed],
        "items": [one.item_id for one in listed],
    }
