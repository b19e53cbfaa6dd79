"""Reads what the quarantine of a source undoes, and what memories read again after it."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from service.domain.access.trust import Trust
from service.domain.prism.amendments import Amendment, Op
from service.domain.prism.undoing import PastRevision
from service.domain.values.json_values import restore
from service.domain.values.paths import Path
from storage.access import source_trust
from storage.engine.claims import Claim
from storage.engine.database import Transaction

_OF = "r.session_key = %(session)s AND r.memory_id = %(memory)s"
_AGAIN = "c.position = ANY(r.read_positions)"
_TAINTED = f"""
SELECT r.revision FROM revision r
WHERE {_OF} AND (
    (r.kind = 'step' AND EXISTS ({source_trust.READ_SINCE.format(read=source_trust.BY_STEP)}))
    OR (r.kind = 'quarantine' AND r.read_positions IS NOT NULL
        AND EXISTS ({source_trust.READ_SINCE.format(read=_AGAIN)})))
"""  # noqa: S608 - all of it is ours
_QUARANTINES = f"SELECT r.revision FROM revision r WHERE {_OF} AND r.kind = 'quarantine'"  # noqa: S608
_KINDS = f"""
SELECT r.revision, r.kind FROM revision r
WHERE {_OF} AND r.revision > %(after)s AND r.kind <> 'quarantine' ORDER BY r.revision
"""  # noqa: S608
_AMENDMENTS = f"""
SELECT r.revision, r.path, r.op, r.value FROM amendment r
WHERE {_OF} AND r.revision > %(after)s ORDER BY r.revision, r.ordinal
"""  # noqa: S608


@dataclass(frozen=True, kw_only=True, slots=True)
class QuarantineScope:
    """Which revisions of a memory a change of quarantines is about."""

    #: Those that read a chunk of a source that is quarantined now.
    tainted: frozenset[int]
    #: Those that earlier changes of quarantines made.
    quarantines: frozenset[int]


def _key(held: Claim) -> dict[str, Any]:
    return {"session": held.session_key, "memory": held.memory_id}


async def read_scope(tx: Transaction, held: Claim) -> QuarantineScope:
    """Returns which revisions rest on sources that are quarantined, and what undid some before."""
    tainted = await tx.fetch(_TAINTED, _key(held), prepare=False)
    earlier = await tx.fetch(_QUARANTINES, _key(held), prepare=False)
    return QuarantineScope(
        tainted=frozenset(row[0] for row in tainted),
        quarantines=frozenset(row[0] for row in earlier),
    )


_KEPT_BEFORE = f"""
SELECT max(r.revision) FROM revision r WHERE {_OF} AND r.revision <= %(revision)s AND NOT r.expired
"""  # noqa: S608
# The days of which some revisions have expired, and one is among those.
_DAYS = f"""
WITH day AS MATERIALIZED (
    -- Each revision with the next one that has not expired: its day's last.
    SELECT r.revision, r.kind, min(r.revision) FILTER (WHERE NOT r.expired) OVER (
        ORDER BY r.revision DESC ROWS UNBOUNDED PRECEDING) AS upto
    FROM revision r WHERE {_OF}
)
SELECT revision FROM day
WHERE kind = 'step' AND upto IN (SELECT upto FROM day WHERE revision = ANY(%(tainted)s::bigint[]))
"""  # noqa: S608


async def kept_before(tx: Transaction, held: Claim, revision: int) -> int:
    """Returns a revision, or the newest before it whose state has not expired."""
    rows = await tx.fetch(_KEPT_BEFORE, {**_key(held), "revision": revision}, prepare=False)
    return int(rows[0][0])


async def read_days(tx: Transaction, held: Claim, tainted: Collection[int]) -> frozenset[int]:
    """Returns the steps of thinned days that have one of these revisions, and these.

    What one of them wrote, another may have replaced: then it is known no more which.
    """
    values = {**_key(held), "tainted": list(tainted)}
    return frozenset(row[0] for row in await tx.fetch(_DAYS, values, prepare=False)) | {*tainted}


async def read_past(
    tx: Transaction, held: Claim, after: int, lineage: Sequence[tuple[int, int]]
) -> Sequence[PastRevision]:
    """Returns the revisions of a lineage after one, with their amendments, oldest first.

    Without those that earlier quarantines made.
    """
    values = {**_key(held), "after": after}
    found: dict[int, list[Amendment]] = {}
    for row in await tx.fetch(_AMENDMENTS, values, prepare=False):
        one = Amendment(path=Path.parse(row.path), op=Op(row.op), value=restore(row.value))
        found.setdefault(row.revision, []).append(one)
    return [
        PastRevision(revision=row.revision, kind=row.kind, amendments=found[row.revision])
        for row in await tx.fetch(_KINDS, values, prepare=False)
        if row.revision in found and any(begin < row.revision <= end for begin, end in lineage)
    ]


_IS_READ = f"{source_trust.at_least(Trust.UNVERIFIED)} AND c.redaction_id IS NULL"
_LEFT = f"""
SELECT c.position FROM revision r CROSS JOIN LATERAL (
    -- By the key of the chunks, for each step: a join would compare all of both.
    SELECT c.position FROM chunk c
    WHERE c.session_key = %(session)s AND {source_trust.BY_STEP} AND {_IS_READ} OFFSET 0
) AS c
WHERE {_OF} AND r.revision = ANY(%(undone)s::bigint[]) AND r.kind = 'step'
UNION
SELECT c.position FROM chunk c
WHERE c.session_key = %(session)s AND {_IS_READ} AND (
    c.position = ANY(%(positions)s::bigint[]) OR c.position = ANY(ARRAY(
        SELECT unnest(r.read_positions) FROM revision r
        WHERE {_OF} AND r.kind = 'quarantine'
            AND (r.undone IS NOT NULL OR NOT %(releases)s))))
ORDER BY 1
"""  # noqa: S608 - all of it is ours
# Steps since then have passed chunks of it without reading them.
_HELD = f"""
SELECT c.position FROM chunk c
WHERE c.session_key = %(session)s AND c.position <= %(applied)s
    AND {source_trust.matches("%(source)s", "c.source")} AND {_IS_READ}
    AND c.position > coalesce((
        SELECT max(r.to_position) FROM revision r WHERE {_OF} AND r.created_at < %(since)s), 0)
ORDER BY 1
"""  # noqa: S608 - all of it is ours


async def read_left(
    tx: Transaction, held: Claim, undone: Sequence[int], *, releases: bool
) -> Sequence[int]:
    """Returns the positions of chunks that the undone revisions read and that may be read.

    Besides, what earlier releases had the memory read. Unless a source is released also what was
    read again before, or was to be.
    """
    values = {
        **_key(held),
        "undone": list(undone),
        "positions": [] if releases else list(held.reread_positions or ()),
        "releases": releases,
    }
    return [row[0] for row in await tx.fetch(_LEFT, values, prepare=False)]


async def read_held(tx: Transaction, held: Claim, source: str, since: datetime) -> Sequence[int]:
    """Returns the positions of a source's chunks that the memory passed since a time."""
    values = {**_key(held), "source": source, "since": since, "applied": held.applied_position}
    return [row[0] for row in await tx.fetch(_HELD, values, prepare=False)]


_FENCE = """
UPDATE memory SET epoch = epoch + 1 WHERE session_key = %(session)s
RETURNING memory_id, name, kind
"""
_READ_AGAIN = """
UPDATE memory SET reread_positions = %(positions)s::bigint[], has_work = true, resting = false,
    ready_at = greatest(ready_at, now()), entry_revision = 0
WHERE session_key = %(session)s AND memory_id = %(memory)s
"""


async def fence(tx: Transaction, session_key: UUID) -> Sequence[tuple[UUID, str, str]]:
    """Fences off the work on all memories of a session; returns ids, names and kinds.

    What is under way may have read a source before its level changed.
    """
    rows = await tx.fetch(_FENCE, {"session": session_key})
    tx.changed.update(row[0] for row in rows)
    return [(row.memory_id, row.name, row.kind) for row in sorted(rows, key=lambda row: row.name)]


async def read_again(tx: Transaction, held: Claim, positions: Sequence[int]) -> None:
    """Has a memory read these positions again, and its entries written anew."""
    await tx.execute(_READ_AGAIN, {**_key(held), "positions": list(positions)})
    tx.changed.add(held.memory_id)
