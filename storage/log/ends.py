"""The ends of a log: how far its first, or its newest, chunks go that have so many bytes.

Neither reads a text, nor more rows than can have the bytes: positions have no gaps.
"""

from uuid import UUID

from storage.engine.database import Transaction
from storage.log.chunks import CONTENT_BYTES
from storage.log.ranges import Range

#: Bytes that a chunk counts besides its content: tiny ones take time and room as well.
CHUNK_BYTES = 128

_ENDS = f"""
SELECT count(*) FROM (
    SELECT sum({CONTENT_BYTES} + {CHUNK_BYTES}) OVER (
        ORDER BY c.position {{order}} ROWS UNBOUNDED PRECEDING
    ) AS total
    FROM chunk c
    WHERE c.session_key = %(session)s AND c.position > %(after)s AND c.position <= %(upto)s
) AS sized
WHERE total <= %(bytes)s
"""  # noqa: S608 - all of it stands above
_FIRST, _NEWEST = _ENDS.format(order=""), _ENDS.format(order="DESC")


async def first(tx: Transaction, session_key: UUID, after: int, upto: int, max_bytes: int) -> int:
    """Up to where the first chunks of (after, upto] have at most `max_bytes`; at least one."""
    last = min(upto, after + _most_chunks(max_bytes))
    fitting = await _count(tx, _FIRST, session_key, after, last, max_bytes)
    return min(after + max(fitting, 1), upto)


async def newest(tx: Transaction, session_key: UUID, after: int, upto: int, max_bytes: int) -> int:
    """Behind which position the newest chunks of (after, upto] have at most `max_bytes`; at
    least one is left."""
    behind = max(after, upto - _most_chunks(max_bytes))
    fitting = await _count(tx, _NEWEST, session_key, behind, upto, max_bytes)
    return max(upto - max(fitting, 1), after)


# Of chunks that fit there may be few in many, so that both walk from chunk to chunk.
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
_FIRST_FITTING = "SELECT max(position) FROM ({}) AS s WHERE total <= %(bytes)s OR number = 1"
_NEWEST_FITTING = "SELECT max(position) FROM ({}) AS s WHERE total > %(bytes)s AND number > 1"


async def first_fitting(tx: Transaction, session_key: UUID, within: Range, max_bytes: int) -> int:
    """As `first`, of the chunks of a range alone; its end where it has none."""
    found = await _fitting(tx, _FIRST_FITTING, "", session_key, within, max_bytes)
    return within.to_position if found is None else found


async def newest_fitting(tx: Transaction, session_key: UUID, within: Range, max_bytes: int) -> int:
    """As `newest`, of the chunks of a range alone; before its beginning where all of them fit."""
    found = await _fitting(tx, _NEWEST_FITTING, "DESC", session_key, within, max_bytes)
    return within.from_position - 1 if found is None else found


async def _fitting(
    tx: Transaction, which: str, order: str, session_key: UUID, within: Range, max_bytes: int
) -> int | None:
    sized = _SIZED.format(order=order, conditions=within.conditions() or "true")
    values = {"session": session_key, **within.values(), "bytes": max_bytes}
    values["most"] = _most_chunks(max_bytes) + 1
    # The plan is not kept: it is for what is wanted here.
    ((found,),) = await tx.fetch(which.format(sized), values, prepare=False)
    return None if found is None else int(found)


def _most_chunks(max_bytes: int) -> int:
    return max_bytes // CHUNK_BYTES + 1


async def _count(
    tx: Transaction, statement: str, session_key: UUID, after: int, upto: int, max_bytes: int
) -> int:
    values = {"session": session_key, "after": after, "upto": upto, "bytes": max_bytes}
    row = (await tx.fetch(statement, values, prepare=None))[0]
    return int(row[0])
