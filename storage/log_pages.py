"""Pages of the log: as many chunks as fit, and not one row more.

Who asks says how many chunks, and a chunk may have hundreds of kilobytes. So what is read is
bounded by bytes where it is stored, metadata included: a page costs what it holds.
"""

from collections.abc import Mapping, Sequence
from uuid import UUID

from service.domain.chunks import LoggedChunk
from storage.database import Transaction
from storage.log import CHUNK_COLUMNS, CONTENT_BYTES, logged_of

#: The size of a chunk with its metadata, where its table is called c. Metadata has to be read
#: for it, which is why no more rows may be looked at than a page has.
CHUNK_BYTES = f"({CONTENT_BYTES} + coalesce(octet_length(c.metadata::text), 0))"

# From chunk to chunk: a window over all that was asked for would read metadata of a thousand
# chunks for a page of thirty. The chunk that passes the bound is walked to and left out.
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
SELECT {CHUNK_COLUMNS}, c.after FROM walk AS c
WHERE c.total <= %(bytes)s OR c.position = c.after + 1
ORDER BY c.after, c.position
"""  # noqa: S608 - all of it is ours


async def read_pages(
    tx: Transaction, session_key: UUID, ranges: Sequence[tuple[int, int]], max_bytes: int
) -> Mapping[int, Sequence[LoggedChunk]]:
    """Returns the chunks at positions (after, to] of each range, by its `after`.

    Of each range the first that have `max_bytes` together, metadata included, and at least
    one. No two ranges begin at the same position.
    """
    used = [(after, upto) for after, upto in ranges if after < upto]
    values = {
        "session": session_key,
        "after": [after for after, _ in used],
        "upto": [upto for _, upto in used],
        "bytes": max_bytes,
    }
    found: dict[int, list[LoggedChunk]] = {}
    for *columns, after in await tx.rows(_WALK, values):
        found.setdefault(after, []).append(logged_of(columns))
    return found
