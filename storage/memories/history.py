"""Reads the revisions of a memory, and which of them led to a state."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Select, func, select

from storage.engine.database import Transaction
from storage.engine.listing import ALL_BYTES, ListPage, fields_of, list_rows
from storage.tables import amendment, rejection, revision


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredRevision:
    """A committed change of a memory."""

    revision: int
    #: One of `revision_kind` in storage/tables/memories.py.
    kind: str
    from_position: int
    to_position: int
    comment: str
    #: For a rollback: the revision whose state it restored.
    restored_revision: int | None
    #: For a change of the schema: the new schema.
    schema_source: str | None
    #: SHA-256 of the value after it.
    digest: bytes
    created_at: datetime
    #: Its state has expired.
    expired: bool
    #: Their numbers.
    amendments: int
    rejections: int


def _select(session_key: UUID, memory_id: UUID) -> Select[Any]:
    return select(
        *(revision.c[name] for name in StoredRevision.__dataclass_fields__ if name in revision.c),
        _count(amendment).label("amendments"),
        _count(rejection).label("rejections"),
    ).where(revision.c.session_key == session_key, revision.c.memory_id == memory_id)


def _count(table: Any) -> Any:
    return (
        select(func.count())
        .where(
            table.c.session_key == revision.c.session_key,
            table.c.memory_id == revision.c.memory_id,
            table.c.revision == revision.c.revision,
        )
        .scalar_subquery()
    )


async def list_revisions(
    tx: Transaction, session_key: UUID, memory_id: UUID, after: int, limit: int
) -> Sequence[StoredRevision]:
    """Returns up to `limit` revisions after `after`, oldest first; -1 begins at the first."""
    key = session_key, memory_id
    return (await page_revisions(tx, *key, after, limit, max_bytes=ALL_BYTES)).items


async def page_revisions(
    tx: Transaction, session_key: UUID, memory_id: UUID, after: int, limit: int, *, max_bytes: int
) -> ListPage[StoredRevision]:
    """Does as `list_revisions`, up to about `max_bytes` of comments and schemas."""
    size = func.octet_length(revision.c.comment) + func.coalesce(
        func.octet_length(revision.c.schema_source), 0
    )
    found = await list_rows(
        tx,
        _select(session_key, memory_id).where(revision.c.revision > after),
        size=size,
        order=(revision.c.revision,),
        limit=limit,
        max_bytes=max_bytes,
    )
    items = [StoredRevision(**fields_of(row, StoredRevision)) for row in found.items]
    return ListPage(items=items, more=found.more)


async def read_revisions(
    tx: Transaction, session_key: UUID, memory_id: UUID, numbers: Sequence[int]
) -> dict[int, StoredRevision]:
    """Returns these revisions, by their numbers."""
    statement = _select(session_key, memory_id).where(revision.c.revision.in_(numbers))
    rows = await tx.fetch(statement)
    return {row.revision: StoredRevision(**row._asdict()) for row in rows}


_LINEAGE = """
WITH RECURSIVE undone AS (
    (
        SELECT revision, restored_revision FROM revision
        WHERE session_key = %(session)s AND memory_id = %(memory)s
            AND restored_revision IS NOT NULL AND revision <= %(revision)s
        ORDER BY revision DESC LIMIT 1
    )
    UNION ALL
    SELECT before.revision, before.restored_revision
    FROM undone, LATERAL (
        SELECT revision, restored_revision FROM revision
        WHERE session_key = %(session)s AND memory_id = %(memory)s
            AND restored_revision IS NOT NULL AND revision <= undone.restored_revision
        ORDER BY revision DESC LIMIT 1
    ) AS before
)
SELECT revision, restored_revision FROM undone ORDER BY revision DESC
"""


_QUARANTINES = """
SELECT revision, undone FROM revision
WHERE session_key = %(session)s AND memory_id = %(memory)s AND kind = 'quarantine'
    AND revision <= %(revision)s
ORDER BY revision DESC
"""


async def lineage(
    tx: Transaction, session_key: UUID, memory_id: UUID, at_revision: int
) -> Sequence[tuple[int, int]]:
    """Returns the ranges of revisions (a, b] that led to the state at `at_revision`, newest first.

    Revisions that a rollback or a quarantine undid are not among them.
    """
    ranges = await committed_lineage(tx, session_key, memory_id, at_revision)
    undone = sorted(await quarantined(tx, session_key, memory_id, at_revision), reverse=True)
    return [part for one in ranges for part in _without(one, undone)]


async def quarantined(
    tx: Transaction, session_key: UUID, memory_id: UUID, at_revision: int
) -> Collection[int]:
    """Returns the revisions that the newest quarantine undid.

    Besides, the earlier quarantines, which it replaces.
    """
    values = {"session": session_key, "memory": memory_id, "revision": at_revision}
    found = await tx.fetch(_QUARANTINES, values)
    newest = next((row for row in found if row.undone is not None), None)
    if newest is None:
        return ()
    return {*newest.undone, *(row.revision for row in found if row.revision < newest.revision)}


async def last_quarantine(
    tx: Transaction, session_key: UUID, memory_id: UUID, at_revision: int
) -> int | None:
    """Returns the newest revision that undid or restored what came from a source."""
    values = {"session": session_key, "memory": memory_id, "revision": at_revision}
    found = await tx.fetch(_QUARANTINES, values)
    return next((row.revision for row in found if row.undone is not None), None)


def _without(within: tuple[int, int], undone: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yields what is left of a range of revisions, newest first."""
    after, upto = within
    for one in undone:
        if after < one <= upto:
            yield one, upto
            upto = one - 1
    yield after, upto


async def committed_lineage(
    tx: Transaction, session_key: UUID, memory_id: UUID, at_revision: int
) -> Sequence[tuple[int, int]]:
    """Does as `lineage`, with the revisions that a quarantine undid."""
    values = {"session": session_key, "memory": memory_id, "revision": at_revision}
    found: list[tuple[int, int]] = []
    end = at_revision
    for row in await tx.fetch(_LINEAGE, values, prepare=None):
        found.append((row.revision, end))
        end = row.restored_revision
    return [*found, (0, end)]
