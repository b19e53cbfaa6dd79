"""Fusing: one ranking out of several, by reciprocal ranks.

Cormack, Clarke and Buettcher, Reciprocal Rank Fusion outperforms Condorcet and individual
Rank Learning Methods (2009): ranks can be compared where scores cannot.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

#: How little the first ranks of a ranking differ; the paper's.
RANK_CONSTANT = 60


@dataclass(frozen=True, kw_only=True, slots=True)
class ScoredChunk:
    """What one way of searching found."""

    position: int
    #: By its own measure: higher fits better.
    score: float
    #: The characters of the chunk that fit; both 0: none in particular.
    from_character: int = 0
    to_character: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Fused:
    """A place in the fused ranking."""

    position: int
    #: Sum of weight / (RANK_CONSTANT + rank); compares within one ranking only.
    score: float
    #: 1, 2, 3 … in each ranking, in the order of the rankings; 0: not in it.
    ranks: tuple[int, ...]


def fuse(rankings: Sequence[tuple[float, Sequence[ScoredChunk]]]) -> Sequence[Fused]:
    """Merges rankings, each with its weight and its best hit first, into one.

    Among equals the one with the better rank anywhere comes first, then the earlier position.
    """
    ranks = [_ranks(hits) for _, hits in rankings]
    weights = [weight for weight, _ in rankings]
    positions = dict.fromkeys(position for held in ranks for position in held)
    fused = [_fused(position, weights, ranks) for position in positions]
    return sorted(fused, key=lambda one: (-one.score, _best(one.ranks), one.position))


def _ranks(hits: Sequence[ScoredChunk]) -> Mapping[int, int]:
    found: dict[int, int] = {}
    for rank, hit in enumerate(hits, 1):
        found.setdefault(hit.position, rank)
    return found


def _fused(position: int, weights: Sequence[float], rankings: Sequence[Mapping[int, int]]) -> Fused:
    ranks = tuple(held.get(position, 0) for held in rankings)
    # Where it is missing nothing is added: no hit is not a bad hit.
    shares = (
        weight / (RANK_CONSTANT + rank) for weight, rank in zip(weights, ranks, strict=True) if rank
    )
    return Fused(position=position, score=sum(shares), ranks=ranks)


def _best(ranks: Sequence[int]) -> int:
    return min(rank for rank in ranks if rank)
