"""What a choice of a reader needs to know of sizes, without reading any text."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import func, select

from storage.engine.database import Transaction
from storage.log.chunks import CONTENT_BYTES
from storage.tables import prism_value

#: Chunks behind a position that are looked at; of more the others count like these.
MAX_CHUNKS = 10_000

_BYTES = f"""
SELECT r.after, coalesce(
    sum({CONTENT_BYTES}) * greatest(%(upto)s - r.after, 1) / greatest(count(c.position), 1), 0
)::bigint AS bytes
FROM unnest(%(after)s::bigint[]) AS r (after)
LEFT JOIN chunk c ON c.session_key = %(session)s
    AND c.position > r.after AND c.position <= least(%(upto)s, r.after + {MAX_CHUNKS})
GROUP BY r.after
"""  # noqa: S608 - all of it is ours


@dataclass(frozen=True, kw_only=True, slots=True)
class MemorySizes:
    """Sizes in bytes of UTF-8."""

    #: Of the newest value of each PRISM memory, as canonical JSON.
    values: Mapping[UUID, int]
    #: Of the chunks behind each of the positions that were asked for; estimated of very many.
    behind: Mapping[int, int]


async def read_sizes(
    tx: Transaction, session_key: UUID, *, behind: Sequence[int], upto: int
) -> MemorySizes:
    """The sizes in a session; of the chunks at positions (one of `behind`, upto]."""
    statement = select(
        prism_value.c.memory_id, func.octet_length(prism_value.c.value).label("bytes")
    ).where(prism_value.c.session_key == session_key)
    values = {row.memory_id: row.bytes for row in await tx.fetch(statement)}
    found: dict[int, int] = {}
    if behind:
        named = {"after": sorted(set(behind)), "session": session_key, "upto": upto}
        rows = await tx.fetch(_BYTES, named, prepare=None)
        found = {row.after: row.bytes for row in rows}
    return MemorySizes(values=values, behind=found)
