"""Reads state vectors along a lineage (`history.lineage`), without those that a rollback undid."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from service.domain.state.vectors import StateVector
from storage.engine.database import Transaction
from storage.log.chunks import CONTENT_BYTES
from storage.state.vectors import VECTOR_COLUMNS, vector_of

#: Ranges of revisions (a, b], the newest first.
Lineage = Sequence[tuple[int, int]]

_BACK = f"""
SELECT {VECTOR_COLUMNS}
FROM unnest(%(after)s::bigint[], %(upto)s::bigint[]) AS r (after, upto),
LATERAL (
    SELECT * FROM state_vector
    WHERE session_key = %(session)s AND memory_id = %(memory)s AND level = %(level)s
        AND revision > r.after AND revision <= r.upto
    ORDER BY revision DESC LIMIT %(limit)s
) AS v
ORDER BY v.revision DESC LIMIT %(limit)s
"""  # noqa: S608 - all of it is ours


async def list_back(
    tx: Transaction,
    key: tuple[UUID, UUID],
    lineage: Lineage,
    *,
    level: int,
    upto: int,
    limit: int,
) -> Sequence[StateVector]:
    """Returns up to `limit` vectors of a level, from revision `upto` back, the newest first.

    Of a memory (session_key, memory_id); without the task prompt.
    """
    ranges = [(after, min(end, upto)) for after, end in lineage if after < upto]
    values = {**_ranges(key, ranges), "level": level, "limit": limit}
    return [vector_of(row) for row in await tx.fetch(_BACK, values, prepare=None)]


def _ranges(key: tuple[UUID, UUID], ranges: Lineage) -> dict[str, Any]:
    return {
        "session": key[0],
        "memory": key[1],
        "after": [after for after, _ in ranges],
        "upto": [upto for _, upto in ranges],
    }


@dataclass(frozen=True, kw_only=True, slots=True)
class Placed:
    """A vector without its text."""

    revision: int
    level: int
    from_position: int
    to_position: int
    #: The revision of the episode that it is a child of; None while there is none.
    parent: int | None


#: Without the task prompt, revision 0, which contains no steps.
_MINE = """
WITH mine AS MATERIALIZED (
    SELECT v.revision, v.level, v.from_position, v.to_position, v.children
    FROM unnest(%(after)s::bigint[], %(upto)s::bigint[]) AS r (after, upto)
    JOIN state_vector v ON v.session_key = %(session)s AND v.memory_id = %(memory)s
        AND v.revision > r.after AND v.revision <= r.upto AND v.revision > 0
), held AS (
    SELECT child, mine.revision AS parent FROM mine, unnest(mine.children) AS child
)"""

_PLACED = f"""{_MINE}
SELECT mine.revision, level, from_position, to_position, parent
FROM mine LEFT JOIN held ON held.child = mine.revision
ORDER BY from_position, level DESC
"""  # noqa: S608 - all of it is ours

_BEGINNINGS = """
SELECT revision, left(text, %(characters)s::integer) AS text FROM state_vector
WHERE session_key = %(session)s AND memory_id = %(memory)s AND revision = ANY(%(revisions)s)
"""


async def list_placed(
    tx: Transaction, key: tuple[UUID, UUID], lineage: Lineage
) -> Sequence[Placed]:
    """Returns all vectors of a lineage in the order of the log, without the task prompt."""
    rows = await tx.fetch(_PLACED, _ranges(key, lineage), prepare=None)
    return [Placed(**row._asdict()) for row in rows]


async def read_beginnings(
    tx: Transaction, key: tuple[UUID, UUID], revisions: Sequence[int], characters: int
) -> Mapping[int, str]:
    """Returns the first characters of vectors, by revision."""
    values = {
        "session": key[0],
        "memory": key[1],
        "revisions": list(revisions),
        "characters": characters,
    }
    rows = await tx.fetch(_BEGINNINGS, values, prepare=None)
    return {row.revision: row.text for row in rows}


@dataclass(frozen=True, kw_only=True, slots=True)
class RangeWords:
    """Totals of the chunks of a range."""

    chunks: int
    #: The size of their content in UTF-8.
    bytes: int
    #: Indexes of the words that occur in it, even within others.
    words: tuple[int, ...] = ()


_RANGES = """
SELECT r.at - 1 AS at, count(*) AS chunks, sum(size)::bigint AS bytes, bit_or({bits}) AS bits
FROM unnest(%(after)s::bigint[], %(upto)s::bigint[]) WITH ORDINALITY AS r (after, upto, at),
LATERAL (
    SELECT {CONTENT_BYTES} AS size{said} FROM chunk c
    WHERE c.session_key = %(session)s AND c.position > r.after AND c.position <= r.upto
    OFFSET 0
) AS held
GROUP BY r.at
"""
_SAID = """,
        lower(c.role || ' ' || c.text || ' ' || c.observation || ' ' || c.thought || ' '
            || c.action) AS said"""


async def read_range_words(
    tx: Transaction,
    session_key: UUID,
    ranges: Sequence[tuple[int, int]],
    words: Sequence[str] = (),
) -> Sequence[RangeWords]:
    """Returns the size and words of the chunks at positions (after, to] of each range.

    Words are lower-case, at most `retrieval.MAX_WORDS`.
    """
    bits = [f"(strpos(said, %(word{at})s) > 0)::int::bigint << {at}" for at in range(len(words))]
    statement = _RANGES.format(
        CONTENT_BYTES=CONTENT_BYTES,
        # Sizes do not need the texts.
        said=_SAID if words else "",
        bits=" | ".join(f"({bit})" for bit in bits) or "0::bigint",
    )
    values: dict[str, Any] = {
        "session": session_key,
        "after": [after for after, _ in ranges],
        "upto": [upto for _, upto in ranges],
    }
    values |= {f"word{at}": word for at, word in enumerate(words)}
    found = [RangeWords(chunks=0, bytes=0)] * len(ranges)
    for row in await tx.fetch(statement, values, prepare=None):
        found[row.at] = RangeWords(
            chunks=row.chunks,
            bytes=row.bytes,
            words=tuple(at for at in range(len(words)) if row.bits >> at & 1),
        )
    return found
