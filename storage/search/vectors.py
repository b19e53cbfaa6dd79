"""Finds chunks by their vectors."""

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from service.domain.search.fusing import ScoredChunk
from storage.engine.database import Transaction
from storage.log.ranges import Range

#: Up to so many vectors are compared one by one, which is faster than an index with a filter.
EXACT_VECTORS = 20_000
#: Parts that an index over vectors returns for each chunk, since several parts of one may be near.
_PARTS_A_CHUNK = 4


async def read_by_vectors(
    tx: Transaction,
    session_key: UUID,
    model: str,
    vector: Sequence[float],
    within: Range,
    depth: int,
    *,
    has_index: bool,
) -> Sequence[ScoredChunk]:
    """Returns the `depth` chunks of a range whose best part is nearest to a vector of length 1.

    Only vectors of `model` count. The score is the cosine of the angle. `has_index`: whether
    vectors of this length have one, over all sessions.
    """
    values = {
        "session": session_key,
        "model": model,
        "vector": f"[{','.join(map(repr, map(float, vector)))}]",
        "depth": depth,
        "parts": depth * _PARTS_A_CHUNK,
        **within.values(),
    }
    if has_index and within.positions is None and await _are_many(tx, within, values):
        queries = (*_BY_INDEX, vectors_query(vector, within, True))
        (*_, rows) = await tx.pipeline(queries, values, snapshot=True, prepare=False)
        # With a filter that few pass, the index may give up before it has found enough.
        if len(rows) >= depth:
            return _hits(rows)
    return _hits(await tx.fetch(vectors_query(vector, within, False), values, prepare=False))


def _hits(rows: Sequence[tuple[Any, ...]]) -> Sequence[ScoredChunk]:
    return [
        ScoredChunk(position=position, score=score, from_character=start, to_character=end)
        for position, score, start, end in rows
    ]


_COUNT = f"""
SELECT count(*) FROM (
    SELECT FROM chunk_vector v WHERE v.session_key = %(session)s
        AND v.position BETWEEN %(low)s AND %(high)s LIMIT {EXACT_VECTORS + 1}
) AS bounded
"""  # noqa: S608 - all of it is ours


async def _are_many(tx: Transaction, within: Range, values: Mapping[str, object]) -> bool:
    """Returns whether there are more vectors than are compared one by one."""
    chunks = within.to_position - within.from_position + 1
    if chunks * _PARTS_A_CHUNK <= EXACT_VECTORS:
        # More parts per chunk take somewhat longer, but counting them would cost each search.
        return False
    ((many,),) = await tx.fetch(_COUNT, values)
    return bool(many > EXACT_VECTORS)


# The index is over all sessions: it is searched until enough of this one are found.
_BY_INDEX = ("SET LOCAL hnsw.iterative_scan = relaxed_order", "SET LOCAL hnsw.ef_search = 200")


def vectors_query(vector: Sequence[float], within: Range, by_index: bool) -> str:
    """Returns the statement that ranks by vectors: all of the range, or those of an index."""
    size = len(vector)
    near = f"v.embedding::vector({size}) <=> %(vector)s::vector({size})"
    nearest = f"ORDER BY {near} LIMIT %(parts)s" if by_index else ""
    return f"""
WITH near AS MATERIALIZED (
    SELECT v.position, v.from_character, v.to_character, {near} AS distance
    FROM {within.rows("chunk_vector", "v", "%(low)s", "%(high)s")}
        AND v.model = %(model)s AND array_length(v.embedding, 1) = {size}
        {within.exists("v")}
    {nearest}
)
SELECT position, 1 - distance, from_character, to_character FROM (
    SELECT DISTINCT ON (position) * FROM near ORDER BY position, distance, from_character
) AS best
ORDER BY distance, position LIMIT %(depth)s
"""  # noqa: S608 - all of it is ours
