"""Finds the ends of a log: the first, or the newest, chunks that have so many bytes together.

Neither reads a text, nor more rows than can have the bytes.
"""

from uuid import UUID

from storage.engine.database import Transaction
from storage.log.chunks import CONTENT_BYTES
from storage.log.ranges import Range

#: Bytes that a chunk counts besides its content: tiny ones cost time and space as well.
CHUNK_BYTES = 128

# One row more than the bytes allow, which exceeds them for certain.
_SIZED = f"""
SELECT c.position,
    sum(c.bytes) OVER (ORDER BY c.position {{order}} ROWS UNBOUNDED PRECEDING) AS total,
    row_number() OVER (ORDER BY c.position {{order}}) AS number
FROM (
    SELECT c.position, {CONTENT_BYTES} + {CHUNK_BYTES} AS bytes FROM chunk c
    WHERE c.session_key = %(session)s AND c.position BETWEEN %(low)s AND %(high)s AND {{conditions}}
    ORDER BY c.position {{order}} LIMIT %(most)s
) AS c
"""  # noqa: S608 - all of it is ours
_FIRST = "SELECT max(position) FROM ({}) AS s WHERE total <= %(bytes)s OR number = 1"
_NEWEST = "SELECT max(position) FROM ({}) AS s WHERE total > %(bytes)s AND number > 1"


async def first(tx: Transaction, session_key: UUID, within: Range, max_bytes: int) -> int:
    """Returns the position up to which the first chunks of a range have at most `max_bytes`.

    At least one chunk counts. Without chunks it is the end of the range.
    """
    found = await _fitting(tx, _FIRST, "", session_key, within, max_bytes)
    return within.to_position if found is None else found


async def newest(tx: Transaction, session_key: UUID, within: Range, max_bytes: int) -> int:
    """Returns the position after which the newest chunks of a range have at most `max_bytes`.

    At least one chunk is after it. It is before the range if all chunks fit.
    """
    found = await _fitting(tx, _NEWEST, "DESC", session_key, within, max_bytes)
    return within.from_position - 1 if found is None else found


async def _fitting(
    tx: Transaction, which: str, order: str, session_key: UUID, within: Range, max_bytes: int
) -> int | None:
    sized = _SIZED.format(order=order, conditions=within.conditions() or "true")
    values = {"session": session_key, **within.values(), "bytes": max_bytes}
    values["most"] = max_bytes // CHUNK_BYTES + 2
    # The plan is not kept: it is for these conditions.
    ((found,),) = await tx.fetch(which.format(sized), values, prepare=False)
    return None if found is None else int(found)
