"""Takes memories back to before they read a chunk that is redacted.

From the first step that read it on, each revision may rest on it: later prompts show what earlier
steps wrote. So all of them lose their content, and workers read the log again from there. Their
rows stay, with an empty range of positions, so that numbers of revisions keep their order, and
the chain of revisions has no gap. An epoch fences off the work under way.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from storage.engine.database import Row, Transaction

#: The kind of revisions without their content, and of those that remove it.
REDACTION = "redaction"

# A node that ends within the chunk was made of its beginning. A quarantine that goes no longer
# undoes what came before the chunk, nor does a release restore it: so that goes as well, and is
# read again from the sources that count now. Where the revision before has expired, it goes back to
# one whose state is kept.
_MEMORIES = """
SELECT m.memory_id, m.name, m.kind, m.revision, CASE WHEN t.first IS NOT NULL THEN (
    SELECT max(k.revision) + 1 FROM revision k
    WHERE k.session_key = m.session_key AND k.memory_id = m.memory_id AND NOT k.expired
        AND k.revision < least(t.first,
    (SELECT CASE WHEN bool_or(q.revision >= t.first) THEN min(u) END
     FROM revision q LEFT JOIN LATERAL unnest(
         CASE WHEN q.restored_revision IS NULL THEN q.undone ELSE ARRAY[q.restored_revision + 1] END
     ) AS u ON true
     WHERE q.session_key = m.session_key AND q.memory_id = m.memory_id
        AND q.kind = 'quarantine' AND q.undone IS NOT NULL))) END AS first_revision
FROM memory m CROSS JOIN LATERAL (
    SELECT least(
        (SELECT min(r.revision) FROM revision r
         WHERE r.session_key = m.session_key AND r.memory_id = m.memory_id
            AND r.to_position >= %(first)s AND r.to_position > r.from_position),
        (SELECT min(n.revision) FROM tree_node n
         WHERE n.session_key = m.session_key AND n.memory_id = m.memory_id
            AND (n.end_position, n.end_offset) > (%(first)s, 0))
    ) AS first OFFSET 0) AS t
WHERE m.session_key = %(session)s
ORDER BY m.memory_id FOR UPDATE OF m
"""
# What is under way may have read the chunks, also for a memory that has committed nothing of them.
_FENCE = """
UPDATE memory SET epoch = epoch + 1, redacted_epoch = epoch + 1 WHERE session_key = %(session)s
RETURNING memory_id
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class TouchedMemory:
    """A memory that has read a chunk."""

    memory_id: UUID
    name: str
    kind: str
    revision: int
    #: The first revision that may rest on the chunk.
    first_revision: int

    @property
    def kept_revision(self) -> int:
        """Returns the last revision that does not."""
        return self.first_revision - 1


async def fence(tx: Transaction, session_key: UUID, first_position: int) -> list[TouchedMemory]:
    """Fences off work on all memories of a session; returns those that read the log up to there.

    The caller has the session locked.
    """
    values = {"session": session_key, "first": first_position}
    found, fenced = await tx.pipeline((_MEMORIES, _FENCE), values)
    tx.changed.update(row[0] for row in fenced)
    return _touched(found)


async def touched(tx: Transaction, session_key: UUID, first_position: int) -> list[TouchedMemory]:
    """Returns the memories of a session that read the log up to there; they are locked."""
    return _touched(await tx.fetch(_MEMORIES, {"session": session_key, "first": first_position}))


def _touched(found: Sequence[Row]) -> list[TouchedMemory]:
    return [
        TouchedMemory(memory_id=id, name=name, kind=kind, revision=revision, first_revision=first)
        for id, name, kind, revision, first in found
        if first is not None
    ]


_OF = "session_key = %(session)s AND memory_id = %(memory)s"
_FROM = f"{_OF} AND revision >= %(first)s"
#: In the order that their keys demand.
_CONTENT = {
    "memory_entry": _OF,
    "amendment": _FROM,
    "rejection": _FROM,
    "prism_base": _FROM,
    "prism_snapshot": _FROM,
    "tree_node": _FROM,
    "state_vector": _FROM,
    "state_levels": _FROM,
    "dead_letter": f"{_OF} AND to_position > %(kept_position)s",
}
# What is left to be read again before the cursor, and what the revisions that go have read again.
# All after it is read anyway.
_KEPT = f"""
SELECT to_position, digest, ARRAY(
    SELECT p FROM (
        SELECT unnest(reread_positions) FROM memory WHERE {_OF}
        UNION SELECT unnest(read_positions) FROM revision WHERE {_FROM} AND kind = 'quarantine'
    ) AS again (p) WHERE p <= kept.to_position ORDER BY p) AS reread
FROM revision AS kept WHERE {_OF} AND revision = %(kept)s
"""  # noqa: S608 - all of it is ours
# One statement, since each row refers to the one before it.
_EMPTY = f"""
UPDATE revision SET kind = CASE WHEN kind = 'schema' THEN kind ELSE '{REDACTION}' END,
    from_position = %(kept_position)s, to_position = %(kept_position)s, digest = %(digest)s,
    comment = '', restored_revision = NULL, set_aside = false, expired = false
WHERE {_FROM}
"""  # noqa: S608 - all of it is ours
_ADD = f"""
INSERT INTO revision (session_key, memory_id, revision, tenant_id, parent_revision, from_position,
    to_position, kind, epoch, digest)
SELECT session_key, memory_id, revision + 1, tenant_id, revision, %(kept_position)s,
    %(kept_position)s, '{REDACTION}', epoch, %(digest)s
FROM memory WHERE {_OF}
"""  # noqa: S608 - as above
_LEVELS = """
INSERT INTO state_levels (session_key, memory_id, revision, tenant_id, runs)
SELECT l.session_key, l.memory_id, n, l.tenant_id, l.runs
FROM state_levels l, generate_series(%(first)s, %(revision)s + 1) AS n
WHERE l.session_key = %(session)s AND l.memory_id = %(memory)s AND l.revision = %(kept)s
"""
_SAVED = f"""(SELECT max(revision) FROM (
    SELECT revision FROM prism_base WHERE {_OF}
    UNION ALL SELECT revision FROM prism_snapshot WHERE {_OF}) AS saved)"""  # noqa: S608 - as above
_VALUE = f"""
UPDATE prism_value SET revision = %(revision)s + 1, value = %(value)s, unsaved_amendments = (
    SELECT count(*) FROM amendment WHERE {_OF} AND revision > {_SAVED})
WHERE {_OF}
"""  # noqa: S608 - as above
_MOVE = f"""
UPDATE memory SET revision = revision + 1, applied_position = %(kept_position)s,
    status = 'active', has_work = true, ready_at = now(), attempts = 0, resting = false,
    wake_position = NULL, held_reason = NULL, waiting_model = NULL, waiting_cause = NULL,
    consolidated_tokens = 0, fold_state = NULL, losses = NULL, entry_revision = 0,
    thinned_revision = least(thinned_revision, %(kept)s),
    reread_positions = nullif(%(reread)s::bigint[], '{{}}')
WHERE {_OF}
"""  # noqa: S608 - as above


async def rewind(
    tx: Transaction, session_key: UUID, touched: TouchedMemory, value: tuple[str, bytes] | None
) -> Counter[str]:
    """Removes everything that may rest on the chunk; returns the rows by table.

    `value`: of a PRISM memory its value at `kept_revision`, with its digest. The caller has rows
    of the session in `removal`.
    """
    values: dict[str, Any] = {
        "session": session_key,
        "memory": touched.memory_id,
        "first": touched.first_revision,
        "kept": touched.kept_revision,
        "revision": touched.revision,
    }
    ((position, digest, reread),) = await tx.fetch(_KEPT, values)
    values |= {"kept_position": position, "digest": digest, "reread": reread}
    if value is not None:
        values |= {"value": value[0], "digest": value[1]}
    removed: Counter[str] = Counter()
    for table, which in _CONTENT.items():
        removed[table] = await tx.execute(f"DELETE FROM {table} WHERE {which}", values)  # noqa: S608 - names from above
    removed["revision.content"] = await tx.execute(_EMPTY, values)
    moves: Sequence[str] = (_ADD, _LEVELS, _MOVE)
    await tx.pipeline((*moves, _VALUE) if value is not None else moves, values)
    tx.changed.add(touched.memory_id)
    return removed
