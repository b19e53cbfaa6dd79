"""Lists the changes by hand that a redaction undoes, for the client to make again.

Without their content: of a path only the fields of the schema are shown.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from storage.engine.database import Transaction
from storage.memories.rewinding import TouchedMemory

#: Changes that one redaction lists, the newest; the others it counts.
MAX_EDITS = 100
#: Paths of one of them, the first.
MAX_PATHS = 20
#: Characters of a path as it is stored; a longer one counts as the root.
MAX_PATH_CHARACTERS = 300

_EDITS = f"""
SELECT memory_id, revision, kind, created_at, total, ARRAY(
    SELECT CASE WHEN length(a.path) > {MAX_PATH_CHARACTERS} THEN '$' ELSE a.path END
    FROM amendment a WHERE a.session_key = %(session)s AND a.memory_id = found.memory_id
        AND a.revision = found.revision ORDER BY a.ordinal LIMIT {MAX_PATHS}) AS paths
FROM (
    SELECT r.memory_id, r.revision, r.kind, r.created_at, count(*) OVER () AS total
    FROM revision r JOIN unnest(%(memories)s::uuid[], %(firsts)s::bigint[]) AS t (memory_id, first)
        ON r.memory_id = t.memory_id AND r.revision >= t.first
    WHERE r.session_key = %(session)s AND r.kind IN ('edit', 'rollback')
    ORDER BY r.created_at DESC, r.memory_id, r.revision DESC LIMIT {MAX_EDITS}
) AS found ORDER BY created_at, memory_id, revision
"""  # noqa: S608 - numbers from above


@dataclass(frozen=True, kw_only=True, slots=True)
class UndoneEdit:
    """A change by hand, `edit` or `rollback`, that a redaction undoes."""

    memory_id: UUID
    #: The memory's name.
    memory: str
    revision: int
    kind: str
    created_at: datetime
    #: What it changed, as normalized paths, up to MAX_PATHS.
    paths: Sequence[str]


@dataclass(frozen=True, kw_only=True, slots=True)
class UndoneEdits:
    """The changes by hand that a redaction undoes."""

    #: The newest MAX_EDITS, oldest first.
    listed: Sequence[UndoneEdit] = ()
    #: Those, and earlier ones.
    count: int = 0

    def detail(self) -> dict[str, Any]:
        """Returns what the record of the erasure has of them: ids and numbers alone."""
        if not self.count:
            return {}
        edits = [{"memory": str(one.memory_id), "revision": one.revision} for one in self.listed]
        return {"undone_edits": edits, "undone_edits_before": self.count - len(edits)}


#: Of a redaction that undoes none.
NOTHING_UNDONE = UndoneEdits()


async def find(tx: Transaction, session_key: UUID, touched: Sequence[TouchedMemory]) -> UndoneEdits:
    """Returns the changes by hand from the first revisions on that may rest on a chunk."""
    if not touched:
        return NOTHING_UNDONE
    names = {one.memory_id: one.name for one in touched}
    values = {
        "session": session_key,
        "memories": list(names),
        "firsts": [one.first_revision for one in touched],
    }
    rows = await tx.fetch(_EDITS, values)
    return UndoneEdits(
        listed=[
            UndoneEdit(
                memory_id=row.memory_id,
                memory=names[row.memory_id],
                revision=row.revision,
                kind=row.kind,
                created_at=row.created_at,
                paths=row.paths,
            )
            for row in rows
        ],
        count=rows[0].total if rows else 0,
    )
