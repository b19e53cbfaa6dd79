"""Ranking by posting lists: the chunks that fit best, without reading all of them.

A block is a run of chunks. Of a block each word has groups, one for each pair of how often a
chunk has the word and how long the chunk is, and the places of the chunks of each group. A
group's score is the same for all of its chunks, so the groups alone say how much a block can
have at most, and blocks that cannot have a chunk among the best are not read (Ding and Suel,
Faster Top-k Document Retrieval Using Block-Max Indexes, 2011). Where the rarer words of a query
decide, the others are looked up for the chunks that have them only (Turtle and Flood, Query
Evaluation: Strategies and Optimizations, 1995). The results are as if all were read.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from service.domain.search.fusing import ScoredChunk
from service.domain.search.ranking import K1, B

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

#: How often a chunk has the word, how long it is in words, and how many chunks are so.
_GROUP = np.dtype([("count", "u1"), ("length", ">u2"), ("holders", ">u2")])
_PLACE = np.dtype(">u2")


@dataclass(frozen=True, kw_only=True, slots=True)
class PostingBlock:
    """A run of chunks, both positions included."""

    first: int
    last: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Lists:
    """What is known of one word before any place is read, by the indexes of the blocks."""

    groups: Mapping[int, bytes]
    #: Chunks that have the word.
    holders: Mapping[int, int]

    @property
    def total(self) -> int:
        """Chunks that have the word, of all blocks."""
        return sum(self.holders.values())

    @property
    def blocks(self) -> Sequence[int]:
        """Those that have the word."""
        return sorted(self.groups)


def lists_of(groups: Mapping[int, bytes]) -> Lists:
    """Returns the lists of a word from its groups."""
    counted = _by_list(np.add, groups, _joined(groups)["holders"].astype(np.int64))
    return Lists(groups=groups, holders={block: int(one) for block, one in counted.items()})


@dataclass(frozen=True, kw_only=True, slots=True)
class WordPostings:
    """A word in a block."""

    #: Its index among the words of the query.
    word: int
    block: PostingBlock
    groups: bytes
    places: bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Weights:
    """What BM25 knows of a query and of all chunks that are searched."""

    mean_length: float
    #: Weight of each word of the query.
    of_words: Sequence[float]

    def scores(self, word: int, groups: NDArray[np.void]) -> Floats:
        """Returns what the word adds to the score of each chunk of each group (see `ranking`)."""
        count = groups["count"].astype(np.float64)
        length = groups["length"].astype(np.float64)
        held_back = length / self.mean_length * (K1 * B) + K1 * (1 - B)
        scores: Floats = self.of_words[word] * count * (K1 + 1) / (count + held_back)
        return scores

    def most(self, word: int, lists: Lists) -> Mapping[int, float]:
        """Returns what the word adds at most to the score of a chunk of each of its blocks."""
        scores = self.scores(word, _joined(lists.groups))
        return {at: float(one) for at, one in _by_list(np.maximum, lists.groups, scores).items()}


class Best:
    """The best chunks so far: at most `depth`; of equal ones the earlier."""

    def __init__(self, weights: Weights, depth: int, hits: Sequence[ScoredChunk]) -> None:
        self._weights = weights
        self._depth = depth
        self._positions: Integers = np.array([hit.position for hit in hits], dtype=np.int64)
        self._scores: Floats = np.array([hit.score for hit in hits], dtype=np.float64)
        #: So much the last of the best will have at least.
        self._floor = 0.0
        self.add(())

    def hits(self) -> list[ScoredChunk]:
        """Returns the best first."""
        both = zip(self._positions.tolist(), self._scores.tolist(), strict=True)
        return [ScoredChunk(position=position, score=score) for position, score in both]

    def add(self, hits: Sequence[ScoredChunk]) -> None:
        """Adds chunks that are not among them."""
        self._add(
            np.array([hit.position for hit in hits], dtype=np.int64),
            np.array([hit.score for hit in hits], dtype=np.float64),
        )

    def admits(self, most: float, first: int) -> bool:
        """Returns whether a block from `first`, with so much at most, can have one of the best."""
        if most < self._floor:
            return False
        if len(self._scores) < self._depth:
            return True
        last = self._scores[-1]
        return bool(most > last or (most == last and first < self._positions[-1]))

    def bounds(self, lists: Sequence[Lists], blocks: int) -> tuple[list[float], list[float]]:
        """Returns what a chunk of each block has at most, and what each word adds at most."""
        of_blocks, of_words = [0.0] * blocks, []
        # In the order of the words, as the sums of chunks: rounded, they are not above these.
        for word, one in enumerate(lists):
            most = self._weights.most(word, one)
            of_words.append(max(most.values(), default=0.0))
            for at, bound in most.items():
                of_blocks[at] += bound
        return of_blocks, of_words

    def rank(self, parts: Iterable[WordPostings]) -> None:
        """Adds the best of blocks, by all words of the query that they have.

        Those of one block stand together, with words in ascending order: sums in another
        order differ in their last digit.
        """
        for block, held in groupby(parts, key=lambda part: part.block):
            sums = np.zeros(block.last - block.first + 1)
            for part in held:
                at, scores = self._scored(part)
                sums[at] += scores
            is_full = len(self._scores) >= self._depth
            able = np.flatnonzero(sums >= self._scores[-1] if is_full else sums > 0)
            if able.size > self._depth:
                scores = sums[able]
                able = able[scores >= np.partition(scores, -self._depth)[-self._depth]]
            self._add(able + block.first, sums[able])

    def deciding(
        self, parts: Iterable[WordPostings], others: float, limit: int
    ) -> list[int] | None:
        """Returns the chunks that can be among the best, when the words of these parts decide it.

        `others` is what all other words give together at most. None: chunks that have none of
        these words may be among the best as well, or there are more than `limit` that can.
        """
        scored = [(part.block.first, *self._scored(part)) for part in parts]
        positions, which = np.unique(
            np.concatenate([first + at for first, at, _ in scored]), return_inverse=True
        )
        sums = np.bincount(which, weights=np.concatenate([scores for *_, scores in scored]))
        known = np.concatenate([sums, self._scores])
        if known.size >= self._depth:
            # Sums in another order: a little lower, so that none is lost by a last digit.
            self._floor = float(np.partition(known, -self._depth)[-self._depth]) * (1 - 1e-9)
        if self._floor <= others:
            return None
        able = positions[sums + others >= self._floor]
        return [int(one) for one in able] if able.size <= limit else None

    def _scored(self, part: WordPostings) -> tuple[Integers, Floats]:
        """Returns the places of the chunks that have a word, and what it gives to each."""
        held = np.frombuffer(part.groups, _GROUP)
        scores = self._weights.scores(part.word, held)
        return (
            np.frombuffer(part.places, _PLACE).astype(np.int64),
            np.repeat(scores, held["holders"].astype(np.int64)),
        )

    def _add(self, positions: Integers, scores: Floats) -> None:
        positions = np.concatenate([self._positions, positions])
        scores = np.concatenate([self._scores, scores])
        order = np.lexsort((positions, -scores))[: self._depth]
        self._positions, self._scores = positions[order], scores[order]


def _joined(groups: Mapping[int, bytes]) -> NDArray[np.void]:
    return np.frombuffer(b"".join(groups.values()), _GROUP)


def _by_list(
    function: np.ufunc, groups: Mapping[int, bytes], values: NDArray[Any]
) -> Mapping[int, Any]:
    """Returns one value for each block, of those of its groups."""
    if not groups:
        return {}
    sizes = np.array([len(one) // _GROUP.itemsize for one in groups.values()])
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    return dict(zip(groups, function.reduceat(values, starts), strict=True))
