"""Fuses rankings into one by their normalized scores.

Bruch, Gai and Ingber, An Analysis of Fusion Functions for Hybrid Retrieval (2023): ranks do not say
by how much a hit is better than the next, and sums of normalized scores find more. What a ranking
weighs depends on the query, and on no setting: a ranking whose best hits are alike has little to
say, and one that contradicts the first is probably noise.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

#: The best hits whose mean the best hit of a ranking is compared with.
LEADERS = 10
#: The least lead, of a ranking whose best hits are all alike.
MIN_LEAD = 0.1
#: What is left of a further ranking that does not agree with the first.
MIN_AGREEMENT = 0.15
#: Hits of the first ranking without which agreement cannot be judged.
JUDGED_HITS = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class ScoredChunk:
    """What one way of searching found."""

    position: int
    #: By its own measure: higher fits better.
    score: float
    #: The cosine of its nearest part, of which `score` is corrected; 0: not found by vectors.
    cosine: float = 0.0
    #: The characters of the chunk that fit; both 0: none in particular.
    from_character: int = 0
    to_character: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Fused:
    """A place in the fused ranking."""

    position: int
    #: 0 to 1, where 1 is the best hit of every ranking; compares within one fused ranking only.
    score: float
    #: 1, 2, 3 … in each ranking, in the order of the rankings; 0: not in it.
    ranks: tuple[int, ...]


def fuse(rankings: Sequence[tuple[float, Sequence[ScoredChunk]]]) -> Sequence[Fused]:
    """Merges rankings, each with its weight and its best hit first, into one.

    The first ranking has scores of at least 0, and what it does not name has 0, as with BM25.
    Scores of the others count from their last hit, as cosines have no zero. A hit that is at least
    as good in every ranking is never after another. Among equals the one with the better rank
    anywhere comes first, then the earlier position.
    """
    ranks = [_ranks(hits) for _, hits in rankings]
    scores = [_normalized(hits, from_zero=at == 0) for at, (_, hits) in enumerate(rankings)]
    shares = [
        weight * _lead(found) * (_agreement(scores[0], found) if at else 1.0)
        for at, ((weight, _), found) in enumerate(zip(rankings, scores, strict=True))
    ]
    # An empty ranking takes no share: what another found alone can have a score of 1.
    total = sum(share for share, found in zip(shares, scores, strict=True) if found)
    fused = [
        Fused(
            position=position,
            # Where it is missing nothing is added: no hit is not a bad hit.
            score=sum(
                share * found.get(position, 0.0)
                for share, found in zip(shares, scores, strict=True)
            )
            / total,
            ranks=tuple(held.get(position, 0) for held in ranks),
        )
        for position in dict.fromkeys(position for held in ranks for position in held)
    ]
    return sorted(fused, key=lambda one: (-one.score, _best(one.ranks), one.position))


def _ranks(hits: Sequence[ScoredChunk]) -> Mapping[int, int]:
    found: dict[int, int] = {}
    for rank, hit in enumerate(hits, 1):
        found.setdefault(hit.position, rank)
    return found


def _normalized(hits: Sequence[ScoredChunk], *, from_zero: bool) -> Mapping[int, float]:
    """Returns scores from 0 to 1, where 1 is the best hit."""
    found: dict[int, float] = {}
    for hit in hits:
        found.setdefault(hit.position, hit.score)
    least = 0.0 if from_zero else min(found.values(), default=0.0)
    spread = max(found.values(), default=0.0) - least
    if spread <= 0:
        return dict.fromkeys(found, 1.0)
    return {position: (score - least) / spread for position, score in found.items()}


def _lead(found: Mapping[int, float]) -> float:
    """Returns how far the best hit is above the mean of the LEADERS best; missing ones have 0."""
    best = sorted(found.values(), reverse=True)[:LEADERS]
    return max(MIN_LEAD, 1 - sum(best) / LEADERS)


def _agreement(first: Mapping[int, float], other: Mapping[int, float]) -> float:
    """Returns how far a ranking orders the first one's hits as that does: by correlation, to 1.

    Only hits of the first count. Vectors of no use order these by chance, however many there are.
    """
    if len(first) < JUDGED_HITS:
        return MIN_AGREEMENT
    try:
        alike = statistics.correlation(
            list(first.values()), [other.get(position, 0.0) for position in first]
        )
    except statistics.StatisticsError:
        # All scores of one are equal, so that nothing can be compared.
        alike = 0.0
    return MIN_AGREEMENT + (1 - MIN_AGREEMENT) * max(0.0, alike)


def _best(ranks: Sequence[int]) -> int:
    return min(rank for rank in ranks if rank)
