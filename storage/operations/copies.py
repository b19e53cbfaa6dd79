"""Finds the sessions of a tenant that were imported from exports of another one, by their lineage.

The lineage of an import is recorded when it begins, since its ancestors may be deleted later.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from storage.engine.database import Transaction


@dataclass(frozen=True, kw_only=True, slots=True)
class ImportedCopy:
    """A session that was imported from an export, or from one of its copies."""

    session_key: UUID
    #: Its name; empty: its import is unfinished, and deleted rows are not shown.
    name: str
    #: The export that it was imported from itself.
    export_id: UUID
    #: When its import began.
    created_at: datetime
    #: That export, and those that it descends from, newest first.
    descent: Sequence[UUID]


# An import that was abandoned is being removed, as a session that was deleted.
_FIND = """
SELECT i.session_key, coalesce(s.name, '') AS name, i.export_id,
    i.created_at, i.export_id || i.lineage AS descent, count(*) OVER () AS copies
FROM session_import i LEFT JOIN session s USING (session_key)
WHERE i.tenant_id = %(tenant)s AND (i.export_id || i.lineage) && %(exports)s::uuid[]
    AND ((s.session_key IS NOT NULL AND s.deleted_at IS NULL)
        OR (i.finished_at IS NULL AND EXISTS (SELECT FROM removal r
            WHERE r.session_key = i.session_key AND r.ready_at > now())))
ORDER BY i.created_at DESC, i.session_key LIMIT %(limit)s
"""


async def find(
    tx: Transaction, exports: Iterable[UUID], limit: int
) -> tuple[Sequence[ImportedCopy], int]:
    """Returns the newest sessions that came from these exports, and how many there are.

    Unfinished imports are among them.
    """
    values = {"tenant": tx.tenant_id, "exports": list(exports), "limit": limit}
    if not values["exports"]:
        return [], 0
    rows = await tx.fetch(_FIND, values, prepare=None)
    found = [
        ImportedCopy(
            session_key=row.session_key,
            name=row.name,
            export_id=row.export_id,
            created_at=row.created_at,
            descent=row.descent,
        )
        for row in rows
    ]
    return found, rows[0].copies if rows else 0


_IS_THERE = """
SELECT true FROM session_import
WHERE session_key = %(session)s AND export_id = %(export)s AND created_at = %(created)s
"""


async def is_there(tx: Transaction, copy: ImportedCopy) -> bool:
    """Returns whether the session is still the one of that import. The caller has locked it."""
    values = {"session": copy.session_key, "export": copy.export_id, "created": copy.created_at}
    return bool(await tx.fetch(_IS_THERE, values, prepare=None))
