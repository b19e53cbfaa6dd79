"""Reads the newest chunks of a session for recall."""

from collections.abc import Sequence
from uuid import UUID

from service.domain.log.chunks import LoggedChunk
from storage.engine.database import Transaction
from storage.log.chunks import CONTENT_BYTES, CONTENT_COLUMNS, logged_of
from storage.log.ranges import Range

#: Chunks that a read of the newest ones visits where it does not know which ones it wants, and
#: those that it returns at most.
LOOKED_CHUNKS = 2000
NEWEST_CHUNKS = 500

_NEWEST = f"""
SELECT {CONTENT_COLUMNS} FROM (
    SELECT c.*, sum({CONTENT_BYTES}) OVER upto AS total, row_number() OVER upto AS number
    FROM (
        SELECT c.* FROM {{rows}} AND c.redaction_id IS NULL AND {{conditions}}
        ORDER BY c.position DESC LIMIT {NEWEST_CHUNKS}
    ) AS c
    WINDOW upto AS (ORDER BY c.position DESC ROWS UNBOUNDED PRECEDING)
) AS c
WHERE c.total <= %(bytes)s OR c.number = 1
ORDER BY c.position
"""  # noqa: S608 - all of it is ours


async def read_newest(
    tx: Transaction, session_key: UUID, within: Range, max_bytes: int
) -> Sequence[LoggedChunk]:
    """Returns the newest chunks of a range, without metadata, by position; none is redacted.

    As many as have `max_bytes` of content together, and at least one; at most NEWEST_CHUNKS, of
    the newest LOOKED_CHUNKS of the range unless the positions of its threads are known.
    """
    low = "%(low)s"
    if within.positions is None:
        low = f"greatest({low}, %(high)s - {LOOKED_CHUNKS - 1})"
    rows = within.rows("chunk", "c", low, "%(high)s")
    statement = _NEWEST.format(rows=rows, conditions=within.conditions() or "true")
    values = {"session": session_key, **within.values(), "bytes": max_bytes}
    return [logged_of(row) for row in await tx.fetch(statement, values, prepare=False)]
