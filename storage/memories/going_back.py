"""Takes trees and state memories back to before they read a source, and on to where they were.

Each of their revisions rests on all before it, so a quarantine restores the newest that rests on
none of its source, with its cursor. The revisions after that are set aside, and the memory reads
the log on from there. Vectors of a state memory stay with them, for a release; nodes of a tree do
not, since there is one tree alone.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from service.domain.access.trust import Trust
from storage.access import source_trust
from storage.engine.claims import Claim
from storage.engine.database import Transaction
from storage.log import deleting

_OF = "r.session_key = %(session)s AND r.memory_id = %(memory)s"
#: What a skipped step of a state memory has is the beginning of what it did not compress.
_STEPS = f"{_OF} AND r.kind IN ('step', 'skip')"
_TAINTED = f"""
SELECT r.revision FROM revision r
WHERE {_STEPS} AND EXISTS ({source_trust.READ_SINCE.format(read=source_trust.BY_STEP)})
"""  # noqa: S608 - all of it is ours
_MISSED = f"""
SELECT r.revision FROM revision r
WHERE {_STEPS} AND r.created_at >= %(since)s AND EXISTS (
    SELECT FROM chunk c WHERE c.session_key = %(session)s AND {source_trust.BY_STEP}
        AND {source_trust.matches("%(source)s", "c.source")}
        AND {source_trust.at_least(Trust.UNVERIFIED)} AND c.redaction_id IS NULL)
"""  # noqa: S608 - all of it is ours
_MOVES = f"""
SELECT r.revision, r.restored_revision, r.undone FROM revision r
WHERE {_OF} AND r.kind = 'quarantine' AND r.restored_revision IS NOT NULL ORDER BY r.revision
"""  # noqa: S608 - all of it is ours
_ENDS = f"SELECT r.revision, r.to_position FROM revision r WHERE {_OF} AND r.revision = ANY(%(at)s)"  # noqa: S608

_ADD = """
INSERT INTO revision (session_key, memory_id, revision, tenant_id, parent_revision, from_position,
    to_position, kind, epoch, digest, comment, restored_revision, undone)
SELECT m.session_key, m.memory_id, m.revision + 1, m.tenant_id, m.revision, m.applied_position,
    r.to_position, 'quarantine', m.epoch, r.digest, %(comment)s, r.revision, %(undone)s::bigint[]
FROM memory m JOIN revision r ON r.session_key = m.session_key AND r.memory_id = m.memory_id
    AND r.revision = %(restored)s
WHERE m.session_key = %(session)s AND m.memory_id = %(memory)s
"""
_LEVELS = """
INSERT INTO state_levels (session_key, memory_id, revision, tenant_id, runs)
SELECT session_key, memory_id, %(revision)s + 1, tenant_id, runs FROM state_levels
WHERE session_key = %(session)s AND memory_id = %(memory)s AND revision = %(restored)s
"""
# What is set aside first: of two steps that begin at one position the other counts then.
_SET_ASIDE = f"""
UPDATE revision AS r SET set_aside = true
WHERE {_OF} AND r.revision <= %(revision)s AND NOT r.set_aside AND NOT {{counts}}
"""  # noqa: S608 - all of it is ours
_RESTORE = f"""
UPDATE revision AS r SET set_aside = false
WHERE {_OF} AND r.revision <= %(revision)s AND r.set_aside AND {{counts}}
"""  # noqa: S608 - all of it is ours
_COUNTS = """EXISTS (
    SELECT FROM unnest(%(first)s::bigint[], %(last)s::bigint[]) AS l (first, last)
    WHERE r.revision BETWEEN l.first AND l.last)"""
_CONTENT = (
    """DELETE FROM memory_entry WHERE session_key = %(session)s AND memory_id = %(memory)s""",
    """DELETE FROM tree_node WHERE session_key = %(session)s AND memory_id = %(memory)s
    AND revision > %(restored)s""",
    # Of a step that is not to be tried again.
    """DELETE FROM dead_letter WHERE session_key = %(session)s AND memory_id = %(memory)s
    AND resolution IS NULL""",
)
_MOVE = """
UPDATE memory SET revision = revision + 1, status = 'active', has_work = true,
    applied_position = (SELECT r.to_position FROM revision r WHERE r.session_key = %(session)s
        AND r.memory_id = %(memory)s AND r.revision = %(restored)s),
    ready_at = now(), attempts = 0, resting = false, wake_position = NULL, held_reason = NULL,
    waiting_model = NULL, waiting_cause = NULL, entry_revision = 0
WHERE session_key = %(session)s AND memory_id = %(memory)s
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class PastMove:
    """An earlier quarantine or release of a source that moved the memory."""

    #: The revision that it committed.
    revision: int
    #: The one whose state and cursor it restored.
    restored: int
    #: Steps that it left for good, since they had passed what was released by it.
    left: frozenset[int]


def _key(held: Claim) -> dict[str, Any]:
    return {"session": held.session_key, "memory": held.memory_id}


async def read_tainted(tx: Transaction, held: Claim) -> set[int]:
    """Returns the steps that read a source which is quarantined now."""
    return {row[0] for row in await tx.fetch(_TAINTED, _key(held), prepare=False)}


async def read_missed(tx: Transaction, held: Claim, source: str, since: datetime) -> set[int]:
    """Returns the steps that passed chunks of a source since a time; they are readable now."""
    values = {**_key(held), "source": source, "since": since}
    return {row[0] for row in await tx.fetch(_MISSED, values, prepare=False)}


async def read_moves(tx: Transaction, held: Claim) -> Sequence[PastMove]:
    """Returns the earlier moves of a memory, the oldest first."""
    return [
        PastMove(revision=row[0], restored=row[1], left=frozenset(row[2] or ()))
        for row in await tx.fetch(_MOVES, _key(held), prepare=False)
    ]


async def read_ends(tx: Transaction, held: Claim, revisions: Collection[int]) -> dict[int, int]:
    """Returns up to which position revisions have the log."""
    rows = await tx.fetch(_ENDS, {**_key(held), "at": list(revisions)}, prepare=False)
    return {row[0]: row[1] for row in rows}


async def move(
    tx: Transaction,
    held: Claim,
    restored: int,
    standing: Sequence[tuple[int, int]],
    left: Collection[int],
    comment: str,
) -> int:
    """Restores a revision with its cursor as one more; returns how many are set aside for it.

    `standing`: ranges of the revisions that count from now on, both ends included. `left`: steps
    that no release restores. The caller has the memory from `lock`, and its work fenced off.
    """
    values = {
        **_key(held),
        "revision": held.revision,
        "restored": restored,
        "undone": sorted(left),
        "comment": comment,
        "first": [first for first, _ in standing],
        "last": [last for _, last in standing],
    }
    await deleting.allow(tx, held.session_key, deleting.SETTING_ASIDE)
    aside = await tx.execute(_SET_ASIDE.format(counts=_COUNTS), values, prepare=None)
    await tx.execute(_RESTORE.format(counts=_COUNTS), values, prepare=None)
    for statement in _CONTENT:
        await tx.execute(statement, values, prepare=None)
    await deleting.forbid(tx, held.session_key, deleting.SETTING_ASIDE)
    for statement in (_ADD, _LEVELS, _MOVE):
        await tx.execute(statement, values, prepare=None)
    tx.changed.add(held.memory_id)
    return aside
