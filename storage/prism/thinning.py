"""Thins the history of PRISM memories: of each past day the last state is kept.

Rows of revisions stay, so that the chain has no gap, and numbers, times and positions are known.
Each of the others of a day is marked as expired: its state can be read no more.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from service.domain.prism.amendments import Amendment, Op
from service.domain.values.json_values import restore
from service.domain.values.paths import Path
from storage.engine.database import Transaction, first, value
from storage.log import deleting

#: The newest revisions of a memory, which are kept whatever their age.
NEWEST_REVISIONS = 10
#: A session whose export began less than this long ago, and has not ended, waits.
EXPORT_HOURS = 24

#: The end of the last day that is over.
CUTOFF = """(date_trunc('day', now() AT TIME ZONE 'UTC')
    - make_interval(days => {days})) AT TIME ZONE 'UTC'"""
#: Whether memory m has revisions to thin: what it has not looked at yet is old.
MAY_THIN = f"""m.kind = 'prism' AND m.thinned_revision < m.revision - {NEWEST_REVISIONS}
    AND EXISTS (SELECT FROM revision r WHERE r.session_key = m.session_key
        AND r.memory_id = m.memory_id AND r.revision = m.thinned_revision + 1
        AND r.created_at < {CUTOFF})"""
_CUTOFF = CUTOFF.format(days="%(days)s::integer")
_OF = "session_key = %(session)s AND memory_id = %(memory)s"
_MEMORIES = f"""
SELECT m.memory_id FROM memory m
WHERE m.session_key = %(session)s AND {MAY_THIN.format(days="%(days)s::integer")}
    AND NOT EXISTS (SELECT FROM session_export e WHERE e.session_key = m.session_key
        AND e.finished_at IS NULL AND e.created_at > now() - interval '{EXPORT_HOURS} hours')
ORDER BY m.memory_id
"""  # noqa: S608 - all of it is ours
_LOCK = f"SELECT true FROM memory WHERE {_OF} FOR NO KEY UPDATE"  # noqa: S608 - as above
# Amendments since the newest base are in prompts. A release restores what the newest quarantine
# undid.
_BOUND = f"""
SELECT m.thinned_revision AS after, least(m.revision - {NEWEST_REVISIONS},
    CASE WHEN m.spec ->> 'encoding' IS DISTINCT FROM 'in_place' THEN (
        SELECT max(b.revision) FROM prism_base b WHERE {_OF}) END,
    (SELECT min(u) - 1 FROM unnest((
        SELECT q.undone FROM revision q WHERE {_OF} AND q.kind = 'quarantine'
            AND q.undone IS NOT NULL ORDER BY q.revision DESC LIMIT 1)) AS u)) AS upto
FROM memory m WHERE {_OF}
"""  # noqa: S608 - all of it is ours
# Pinned is what a rollback restored, since that led to what came after it, and what a question
# is about to be answered from.
_WINDOW = f"""
SELECT r.revision, r.from_position, r.to_position, r.digest, r.created_at < {_CUTOFF} AS is_old,
    (r.created_at AT TIME ZONE 'UTC')::date AS day,
    EXISTS (SELECT FROM revision b WHERE b.session_key = r.session_key
        AND b.memory_id = r.memory_id AND b.restored_revision = r.revision)
    OR EXISTS (SELECT FROM answer a WHERE a.tenant_id = %(tenant)s AND a.status = 'pending'
        AND a.ready_at > '-infinity' AND a.session_key = r.session_key
        AND a.revision = r.revision) AS is_pinned,
    (SELECT coalesce(sum(octet_length(a.value)), 0) FROM amendment a
        WHERE a.session_key = r.session_key AND a.memory_id = r.memory_id
            AND a.revision = r.revision)::bigint AS bytes
FROM revision r WHERE r.session_key = %(session)s AND r.memory_id = %(memory)s
    AND r.revision > %(after)s ORDER BY r.revision LIMIT %(limit)s
"""  # noqa: S608 - all of it is ours
_WITHIN = f"{_OF} AND revision > %(after)s AND revision <= %(upto)s"
_SAVED = f"""
SELECT revision, octet_length(value) AS bytes, true AS is_base FROM prism_base WHERE {_WITHIN}
UNION ALL
SELECT revision, octet_length(value), false FROM prism_snapshot WHERE {_WITHIN}
"""  # noqa: S608 - as above
_AMENDMENTS = f"""
SELECT revision, ordinal, path, op, value FROM amendment WHERE {_WITHIN}
ORDER BY revision, ordinal
"""  # noqa: S608 - as above
_UNSAVED = f"""(
    SELECT count(*) FROM amendment WHERE {_OF} AND revision <= {{upto}} AND revision > (
        SELECT max(revision) FROM (SELECT revision FROM prism_base WHERE {_OF}
            UNION ALL SELECT revision FROM prism_snapshot WHERE {_OF}) AS saved
        WHERE revision <= {{upto}}))"""  # noqa: S608 - as above


@dataclass(frozen=True, kw_only=True, slots=True)
class ThinnedWindow:
    """The range of revisions that a batch may thin."""

    #: It is thinned up to here already.
    after: int
    #: What is after this one is kept for the sake of others.
    upto: int


@dataclass(frozen=True, kw_only=True, slots=True)
class OldRevision:
    """A revision, as far as thinning needs it."""

    revision: int
    from_position: int
    to_position: int
    #: SHA-256 of the value after it.
    digest: bytes
    #: Its day is over for so long that it may expire.
    is_old: bool
    #: Its day in UTC.
    day: object
    is_pinned: bool
    #: What the values of its amendments have.
    bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class SavedState:
    """A base, or a snapshot."""

    revision: int
    bytes: int
    is_base: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Thinned:
    """What a batch removes."""

    #: All revisions up to here are thinned.
    upto: int
    expired: Sequence[int]
    #: (revision, ordinal) of amendments.
    amendments: Collection[tuple[int, int]]
    #: Canonical JSON of states that become bases, by revision.
    bases: Mapping[int, str]


def _key(session_key: UUID, memory_id: UUID) -> dict[str, Any]:
    return {"session": session_key, "memory": memory_id}


async def list_due(tx: Transaction, session_key: UUID, days: int) -> Sequence[UUID]:
    """Returns the ids of a session's memories that have revisions to thin."""
    return [row[0] for row in await tx.fetch(_MEMORIES, {"session": session_key, "days": days})]


async def lock(tx: Transaction, session_key: UUID, memory_id: UUID) -> ThinnedWindow | None:
    """Locks a memory, so that its revisions stay; None when it is gone."""
    values = _key(session_key, memory_id)
    if not await tx.fetch(_LOCK, values):
        return None
    row = first(await tx.fetch(_BOUND, values))
    return None if row is None else ThinnedWindow(after=row.after, upto=row.upto)


async def read_window(
    tx: Transaction, session_key: UUID, memory_id: UUID, after: int, days: int, limit: int
) -> Sequence[OldRevision]:
    """Returns up to `limit` revisions after one, oldest first."""
    values = {**_key(session_key, memory_id), "after": after, "days": days, "limit": limit}
    rows = await tx.fetch(_WINDOW, {**values, "tenant": tx.tenant_id}, prepare=None)
    return [OldRevision(**{**row._asdict(), "digest": bytes(row.digest)}) for row in rows]


async def read_saved(
    tx: Transaction, session_key: UUID, memory_id: UUID, after: int, upto: int
) -> Sequence[SavedState]:
    """Returns the bases and snapshots of the revisions (after, upto]."""
    values = {**_key(session_key, memory_id), "after": after, "upto": upto}
    rows = await tx.fetch(_SAVED, values, prepare=None)
    return [SavedState(**row._asdict()) for row in rows]


async def read_amendments(
    tx: Transaction, session_key: UUID, memory_id: UUID, after: int, upto: int
) -> Mapping[tuple[int, int], Amendment]:
    """Returns the amendments of the revisions (after, upto] by revision and ordinal, in order."""
    values = {**_key(session_key, memory_id), "after": after, "upto": upto}
    return {
        (row.revision, row.ordinal): Amendment(
            path=Path.parse(row.path), op=Op(row.op), value=restore(row.value)
        )
        for row in await tx.fetch(_AMENDMENTS, values, prepare=None)
    }


async def count_unsaved(tx: Transaction, session_key: UUID, memory_id: UUID, upto: int) -> int:
    """Returns how many amendments a read at a revision applies to a base or snapshot."""
    query = f"SELECT {_UNSAVED.format(upto='%(upto)s')}"
    return int(value(await tx.fetch(query, {**_key(session_key, memory_id), "upto": upto})) or 0)


_EXPIRED = f"{_OF} AND revision = ANY(%(expired)s::bigint[])"
_REMOVE = (
    """DELETE FROM amendment a USING unnest(%(revisions)s::bigint[], %(ordinals)s::integer[])
        AS gone (revision, ordinal)
    WHERE a.session_key = %(session)s AND a.memory_id = %(memory)s
        AND a.revision = gone.revision AND a.ordinal = gone.ordinal""",
    f"DELETE FROM rejection WHERE {_EXPIRED}",  # noqa: S608 - as above
    f"DELETE FROM prism_base WHERE {_EXPIRED}",  # noqa: S608 - as above
    f"""DELETE FROM prism_snapshot WHERE {_OF}
        AND revision = ANY(%(expired)s::bigint[] || %(based)s::bigint[])""",  # noqa: S608 - as above
    f"UPDATE revision SET expired = true WHERE {_EXPIRED}",  # noqa: S608 - as above
)
_ADD = """
INSERT INTO prism_base (session_key, memory_id, tenant_id, revision, value)
SELECT %(session)s, %(memory)s, %(tenant)s, t.revision, t.value
FROM unnest(%(based)s::bigint[], %(values)s::text[]) AS t (revision, value)
"""
_MOVE = f"UPDATE memory SET thinned_revision = %(upto)s WHERE {_OF}"  # noqa: S608 - as above
_COUNT = f"""
UPDATE prism_value SET unsaved_amendments = {_UNSAVED.format(upto="prism_value.revision")}
WHERE {_OF} AND unsaved_amendments <> {_UNSAVED.format(upto="prism_value.revision")}
"""  # noqa: S608 - as above


async def remove(tx: Transaction, session_key: UUID, memory_id: UUID, thinned: Thinned) -> None:
    """Removes what a batch found, and writes the states that are kept."""
    values = {
        **_key(session_key, memory_id),
        "tenant": tx.tenant_id,
        "upto": thinned.upto,
        "expired": list(thinned.expired),
        "revisions": [revision for revision, _ in thinned.amendments],
        "ordinals": [ordinal for _, ordinal in thinned.amendments],
        "based": list(thinned.bases),
        "values": list(thinned.bases.values()),
    }
    await deleting.allow(tx, session_key, deleting.SETTING_ASIDE)
    await tx.pipeline((*_REMOVE, _ADD, _MOVE, _COUNT), values)
    await deleting.forbid(tx, session_key, deleting.SETTING_ASIDE)
