"""Reads pages of the log, limited by bytes.

A client says how many chunks it wants, and a chunk may have hundreds of kilobytes. So the database
limits a page by bytes, metadata included, and a page costs no more than its content.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

from service.domain.log.chunks import LoggedChunk
from storage.engine.database import Transaction
from storage.log.chunks import CHUNK_COLUMNS, CONTENT_BYTES, FOUND_COLUMNS, logged_of, stored_of
from storage.log.ranges import OF_THREADS, Range, of_threads

#: The size of a chunk with its metadata, where its table is called c. Metadata must be read for it,
#: which is why a query may not visit more rows than a page has.
CHUNK_BYTES = f"({CONTENT_BYTES} + coalesce(octet_length(c.metadata::text), 0))"

# From chunk to chunk: a window over the whole range would read metadata of a thousand chunks for a
# page of thirty. The chunk that exceeds the limit is visited and left out.
_WALK = f"""
WITH RECURSIVE walk AS (
    SELECT r.after, r.upto, c.*, c.bytes::bigint AS total
    FROM unnest(%(after)s::bigint[], %(upto)s::bigint[]) AS r (after, upto), LATERAL (
        SELECT {CHUNK_COLUMNS}, {CHUNK_BYTES} AS bytes FROM chunk c
        WHERE c.session_key = %(session)s AND c.position = r.after + 1
        LIMIT 1
    ) AS c
    UNION ALL
    SELECT walk.after, walk.upto, c.*, walk.total + c.bytes
    FROM walk, LATERAL (
        SELECT {CHUNK_COLUMNS}, {CHUNK_BYTES} AS bytes FROM chunk c
        WHERE c.session_key = %(session)s AND c.position = walk.position + 1
        LIMIT 1
    ) AS c
    WHERE walk.position < walk.upto AND walk.total < %(bytes)s
)
SELECT {FOUND_COLUMNS}, c.after FROM walk AS c
WHERE c.total <= %(bytes)s OR c.position = c.after + 1
ORDER BY c.after, c.position
"""  # noqa: S608 - all of it is ours


async def read_pages(
    tx: Transaction, session_key: UUID, ranges: Sequence[tuple[int, int]], max_bytes: int
) -> Mapping[int, Sequence[LoggedChunk]]:
    """Returns the chunks at positions (after, to] of each range, by its `after`.

    Of each range the first that have `max_bytes` together, metadata included, and at least
    one. No two ranges begin at the same position. Chunks of blocked sources are shown.
    """
    used = [(after, upto) for after, upto in ranges if after < upto]
    values = {
        "session": session_key,
        "after": [after for after, _ in used],
        "upto": [upto for _, upto in used],
        "bytes": max_bytes,
    }
    found: dict[int, list[LoggedChunk]] = {}
    for *columns, after in await tx.fetch(_WALK, values):
        found.setdefault(after, []).append(stored_of(columns))
    return found


#: Chunks that a page with a filter visits.
MAX_LOOKED = 10_000

_FITTING = """
SELECT c.position FROM {rows} AND {conditions} ORDER BY c.position LIMIT %(count)s
"""

# From one position to the next, as above; only the index of the key has the order.
_WALK_POSITIONS = f"""
WITH RECURSIVE walk AS (
    SELECT 1 AS number, c.*, c.bytes::bigint AS total
    FROM (
        SELECT {CHUNK_COLUMNS}, {CHUNK_BYTES} AS bytes FROM chunk c
        WHERE c.session_key = %(session)s
            AND c.position >= (%(positions)s::bigint[])[1]
            AND c.position <= (%(positions)s::bigint[])[1]
        ORDER BY c.position LIMIT 1
    ) AS c
    UNION ALL
    SELECT walk.number + 1, c.*, walk.total + c.bytes
    FROM walk, LATERAL (
        SELECT {CHUNK_COLUMNS}, {CHUNK_BYTES} AS bytes FROM chunk c
        WHERE c.session_key = %(session)s
            AND c.position >= (%(positions)s::bigint[])[walk.number + 1]
            AND c.position <= (%(positions)s::bigint[])[walk.number + 1]
        ORDER BY c.position LIMIT 1
    ) AS c
    WHERE walk.total < %(bytes)s
)
SELECT {FOUND_COLUMNS} FROM walk AS c
WHERE c.total <= %(bytes)s OR c.number = 1
ORDER BY c.position
"""  # noqa: S608 - all of it is ours


async def read_wanted(
    tx: Transaction,
    session_key: UUID,
    within: Range,
    limit: int,
    max_bytes: int,
    *,
    as_stored: bool = False,
) -> tuple[Sequence[LoggedChunk], int]:
    """Returns up to `limit` of the first chunks of a range, and where the next page begins.

    That is 0 after the last page. A page visits at most MAX_LOOKED chunks: it may be empty without
    being the last. Bytes are counted as in `read_pages`. Chunks of blocked sources are
    empty, unless they are read `as_stored`.
    """
    if within.from_position > within.to_position:
        return (), 0
    values = {"session": session_key, **within.values(), "bytes": max_bytes, "count": limit + 1}
    last = within.to_position
    if threads := within.indexed_threads():
        each = MAX_LOOKED // len(threads)
        found = await _planned(tx, OF_THREADS, {**values, "each": each})
        positions, last = of_threads(found, each, last)
        within = replace(within, positions=positions)
        values["positions"] = list(positions)
    else:
        last = min(last, within.from_position + MAX_LOOKED - 1)
    rows = within.rows("chunk", "c", "%(low)s", "%(high)s")
    statement = _FITTING.format(rows=rows, conditions=within.conditions() or "true")
    fitting = [row[0] for row in await _planned(tx, statement, {**values, "high": last})]
    values["positions"] = fitting[:limit]
    of = stored_of if as_stored else logged_of
    chunks = [of(row) for row in await _planned(tx, _WALK_POSITIONS, values)]
    if len(chunks) < len(fitting):
        return chunks, fitting[len(chunks)]
    return chunks, last + 1 if last < within.to_position else 0


_WHOLLY = """
SELECT r.number
FROM unnest(%(firsts)s::bigint[], %(lasts)s::bigint[]) WITH ORDINALITY
    AS r (first, last, number)
WHERE r.first >= %(low)s AND r.last <= %(high)s AND NOT EXISTS (
    SELECT FROM chunk c
    WHERE c.session_key = %(session)s AND c.position BETWEEN r.first AND r.last
        AND ({conditions}) IS NOT TRUE
)
"""


async def wholly_within(
    tx: Transaction, session_key: UUID, within: Range, spans: Sequence[tuple[int, int]]
) -> Collection[int]:
    """Returns which spans of positions, both ends included, have no chunk outside a range.

    They are numbered 0, 1, 2 …
    """
    statement = _WHOLLY.format(conditions=within.conditions() or "true")
    values = {
        "session": session_key,
        **within.values(),
        "firsts": [first for first, _ in spans],
        "lasts": [last for _, last in spans],
    }
    return {row[0] - 1 for row in await _planned(tx, statement, values)}


async def _planned(
    tx: Transaction, statement: str, values: Mapping[str, object]
) -> Sequence[Sequence[Any]]:
    """Returns the rows of a statement that is planned for these values; the plan is not kept."""
    return await tx.fetch(statement, values, prepare=False)
