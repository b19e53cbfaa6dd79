"""Finds chunks by their vectors.

A long chunk has several vectors, one for each part, and its nearest part counts. The more parts a
chunk has, the nearer the nearest one is by chance alone. So each chunk's score is its cosine less
what the best of as many cosines would exceed their mean by.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from statistics import NormalDist
from typing import Any
from uuid import UUID

from service.domain.search.fusing import ScoredChunk
from storage.engine.database import Transaction
from storage.log.ranges import Range

#: Up to so many vectors are compared one by one, which is faster than an index with a filter.
EXACT_VECTORS = 20_000
#: Parts that an index over vectors returns for each chunk, since several parts of one may be near;
#: and chunks that are compared for each one that is returned, since their scores are corrected.
_PARTS_A_CHUNK = 4
#: Vectors of a session by whose cosines their spread is estimated, where an index finds the
#: nearest ones.
SPREAD_VECTORS = 500


async def read_by_vectors(
    tx: Transaction,
    session_key: UUID,
    model: str,
    vector: Sequence[float],
    within: Range,
    depth: int,
    *,
    embedded_position: int,
    has_index: bool,
) -> Sequence[ScoredChunk]:
    """Returns the `depth` chunks of a range whose best part is nearest to a vector of length 1.

    Only vectors of `model` count; chunks have them up to `embedded_position`. The score is the
    cosine of the angle, corrected for the number of parts. `has_index`: whether vectors of
    this length have one, over all sessions.
    """
    values = {
        "session": session_key,
        "model": model,
        "vector": f"[{','.join(map(repr, map(float, vector)))}]",
        "depth": depth,
        "parts": depth * _PARTS_A_CHUNK,
        **within.values(),
    }
    last = min(within.to_position, embedded_position)
    chunks = last - within.from_position + 1
    if has_index and within.positions is None and await _are_many(tx, chunks, values):
        queries = (*_BY_INDEX, vectors_query(vector, within, True))
        (*_, rows) = await tx.pipeline(queries, values, snapshot=True, prepare=False)
        # With a filter that few pass, the index may give up before it has found enough.
        if len(rows) >= depth:
            return _hits(rows, depth)
    rows = await tx.fetch(vectors_query(vector, within, False), values, prepare=False)
    return _hits(rows, depth)


def _hits(rows: Sequence[tuple[Any, ...]], depth: int) -> Sequence[ScoredChunk]:
    hits = [
        ScoredChunk(
            position=position,
            score=cosine - spread * _exceeded(parts),
            cosine=cosine,
            from_character=start,
            to_character=end,
        )
        for position, cosine, start, end, parts, spread in rows
    ]
    return sorted(hits, key=lambda one: (-one.score, one.position))[:depth]


@lru_cache
def _exceeded(parts: int) -> float:
    """Returns by how many standard deviations the best of so many draws exceeds their mean.

    Expected for a normal distribution, as Blom (1958) approximates it; 0 for one.
    """
    return NormalDist().inv_cdf((parts - 0.375) / (parts + 0.25)) if parts > 1 else 0.0


_COUNT = f"""
SELECT count(*) FROM (
    SELECT FROM chunk_vector v WHERE v.session_key = %(session)s
        AND v.position BETWEEN %(low)s AND %(high)s LIMIT {EXACT_VECTORS + 1}
) AS bounded
"""  # noqa: S608 - all of it is ours


async def _are_many(tx: Transaction, chunks: int, values: Mapping[str, object]) -> bool:
    """Returns whether so many embedded chunks have more vectors than are compared one by one."""
    if chunks > EXACT_VECTORS:
        return True
    if chunks * _PARTS_A_CHUNK <= EXACT_VECTORS:
        # More parts per chunk take somewhat longer, but counting them would cost each search.
        return False
    ((many,),) = await tx.fetch(_COUNT, values)
    return bool(many > EXACT_VECTORS)


# The index is over all sessions: it is searched until enough of this one are found.
_BY_INDEX = ("SET LOCAL hnsw.iterative_scan = relaxed_order", "SET LOCAL hnsw.ef_search = 200")


def vectors_query(vector: Sequence[float], within: Range, by_index: bool) -> str:
    """Returns the statement that finds the nearest chunks: of the whole range, or by an index.

    Each row has the cosine of the chunk's nearest part, the part's characters, the number of parts,
    and the standard deviation of the cosines of all parts, which an index knows of a sample.
    """
    size = len(vector)
    near = f"v.embedding::vector({size}) <=> %(vector)s::vector({size})"
    vectors = f"""{within.rows("chunk_vector", "v", "%(low)s", "%(high)s")}
        AND v.model = %(model)s AND array_length(v.embedding, 1) = {size}
        {within.exists("v")}"""
    nearest = f"ORDER BY {near} LIMIT %(parts)s" if by_index else ""
    parts = "count(*) OVER (PARTITION BY position)"
    measured = "near"
    if by_index:
        parts = """(
            SELECT count(*) FROM chunk_vector v WHERE v.session_key = %(session)s
                AND v.position = near.position AND v.model = %(model)s
        )"""
        # In the order of the key, so that no plan reads the whole table.
        measured = f"""(
            SELECT {near} AS distance FROM (
                SELECT v.embedding FROM chunk_vector v
                WHERE v.session_key = %(session)s AND v.model = %(model)s
                    AND v.position BETWEEN %(low)s AND %(high)s
                ORDER BY v.position DESC LIMIT {SPREAD_VECTORS}
            ) AS v WHERE array_length(v.embedding, 1) = {size}
        ) AS sampled"""  # noqa: S608 - all of it is ours
    return f"""
WITH near AS MATERIALIZED (
    SELECT v.position, v.from_character, v.to_character, {near} AS distance
    FROM {vectors}
    {nearest}
)
SELECT position, 1 - distance, from_character, to_character, parts,
    CASE WHEN parts > 1 THEN (SELECT coalesce(stddev_pop(distance), 0) FROM {measured}) ELSE 0 END
FROM (
    SELECT DISTINCT ON (position) *, {parts} AS parts
    FROM near ORDER BY position, distance, from_character
) AS best
ORDER BY distance, position LIMIT %(parts)s
"""  # noqa: S608 - all of it is ours
