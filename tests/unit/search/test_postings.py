"""The best chunks by posting lists, against a look at all of them."""

import struct
from collections import defaultdict
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from service.domain.search.fusing import ScoredChunk
from service.domain.search.postings import (
    Best,
    Lists,
    PostingBlock,
    Weights,
    WordPostings,
    lists_of,
)
from service.domain.search.ranking import K1, B
from tests.support.properties import examples

#: Of a chunk: how often it has each of three words, and how long it is.
Chunk = tuple[int, int, int, int]
SIZE = 8
WORDS = 3
WEIGHTS = Weights(mean_length=20.0, of_words=(0.4, 1.1, 3.0))

chunks = st.lists(
    st.tuples(
        st.integers(0, 3), st.integers(0, 255), st.sampled_from([0, 0, 0, 1]), st.integers(1, 300)
    ),
    min_size=1,
    max_size=100,
)


def blocks_of(said: Sequence[Chunk]) -> list[PostingBlock]:
    return [
        PostingBlock(first=first, last=min(first + SIZE - 1, len(said)))
        for first in range(1, len(said) + 1, SIZE)
    ]


def part_of(said: Sequence[Chunk], word: int, block: PostingBlock) -> WordPostings | None:
    """Returns a part as the database writes it."""
    groups: dict[tuple[int, int], list[int]] = defaultdict(list)
    for position in range(block.first, block.last + 1):
        chunk = said[position - 1]
        if chunk[word]:
            groups[-chunk[word], chunk[-1]].append(position - block.first)
    if not groups:
        return None
    ordered = sorted(groups.items())
    return WordPostings(
        word=word,
        block=block,
        groups=b"".join(
            struct.pack(">BHH", -count, length, len(held)) for (count, length), held in ordered
        ),
        places=b"".join(struct.pack(">H", place) for _, held in ordered for place in held),
    )


def score(chunk: Chunk, words: Sequence[int] = range(WORDS)) -> float:
    back = K1 * (1 - B + B * chunk[-1] / WEIGHTS.mean_length)
    return sum(
        WEIGHTS.of_words[word] * chunk[word] * (K1 + 1) / (chunk[word] + back) for word in words
    )


def exhaustive(said: Sequence[Chunk], depth: int) -> list[float]:
    return sorted((one for chunk in said if (one := score(chunk)) > 0), reverse=True)[:depth]


def close(ours: Sequence[float], theirs: Sequence[float]) -> bool:
    return len(ours) == len(theirs) and all(
        abs(a - b) < 1e-9 for a, b in zip(ours, theirs, strict=True)
    )


def pruned(
    said: Sequence[Chunk], depth: int, begin: Sequence[ScoredChunk] = ()
) -> tuple[Best, int]:
    """Returns the best, and how many blocks were read."""
    blocks = blocks_of(said)
    best = Best(WEIGHTS, depth, begin)
    bounds, _ = best.bounds(_lists(said, blocks), len(blocks))
    read = 0
    for at in sorted(range(len(blocks)), key=lambda at: (-bounds[at], at)):
        if bounds[at] and best.admits(bounds[at], blocks[at].first):
            held = [part_of(said, word, blocks[at]) for word in range(WORDS)]
            best.rank(part for part in held if part is not None)
            read += 1
    return best, read


def _lists(said: Sequence[Chunk], blocks: Sequence[PostingBlock]) -> list[Lists]:
    parts = [
        {at: part.groups for at, block in enumerate(blocks) if (part := part_of(said, word, block))}
        for word in range(WORDS)
    ]
    return [lists_of(one) for one in parts]


@given(chunks, st.integers(1, 12))
def test_the_best_of_blocks_are_the_best_of_all(said: list[Chunk], depth: int) -> None:
    best, _ = pruned(said, depth)
    assert close([hit.score for hit in best.hits()], exhaustive(said, depth))
    for hit in best.hits():
        assert close([hit.score], [score(said[hit.position - 1])])
    # The same chunks in the same order as a look at all gives, by its own sums.
    everything, _ = pruned(said, len(said))
    assert best.hits() == everything.hits()[:depth]


@given(chunks, st.integers(1, 12), st.integers(0, 100))
def test_hits_from_elsewhere_count_as_well(said: list[Chunk], depth: int, begin: int) -> None:
    known = [
        ScoredChunk(position=len(said) + 1 + at, score=score(chunk))
        for at, chunk in enumerate(said[:begin])
        if score(chunk)
    ]
    best, _ = (
        pruned(said[begin:], depth, known) if said[begin:] else (Best(WEIGHTS, depth, known), 0)
    )
    assert close([hit.score for hit in best.hits()], exhaustive(said, depth))


@given(chunks, st.integers(1, 12), st.sampled_from([(2,), (0, 2), (1, 2), (1,)]))
@settings(max_examples=examples(300))
def test_what_rare_words_decide_is_what_all_words_decide(
    said: list[Chunk], depth: int, rare: tuple[int, ...]
) -> None:
    blocks = blocks_of(said)
    best = Best(WEIGHTS, depth, ())
    lists = _lists(said, blocks)
    _, most = best.bounds(lists, len(blocks))
    parts = [part for w in rare for block in blocks if (part := part_of(said, w, block))]
    if not parts:
        return
    others = sum(most[word] for word in range(WORDS) if word not in rare)
    able = best.deciding(parts, others, 50)
    if able is None:
        return
    best.add([ScoredChunk(position=at, score=score(said[at - 1])) for at in able])
    assert close([hit.score for hit in best.hits()], exhaustive(said, depth))


def test_a_word_that_no_chunk_has_gives_nothing() -> None:
    nothing = lists_of({})
    assert (nothing.total, nothing.blocks) == (0, [])
    assert Best(WEIGHTS, 3, ()).bounds([nothing], 2) == ([0.0, 0.0], [0.0])


def test_of_one_word_no_more_blocks_are_read_than_there_are_best_chunks() -> None:
    # In each block one chunk is shorter than all others before it.
    said: list[Chunk] = [
        (1, 0, 0, 300 - at // SIZE if at % SIZE == 3 else 300) for at in range(800)
    ]
    best, read = pruned(said, 5)
    assert [hit.position for hit in best.hits()] == [796, 788, 780, 772, 764]
    assert read == 5


def test_of_equal_chunks_the_first_block_is_enough() -> None:
    best, read = pruned([(1, 0, 0, 10)] * 800, 5)
    assert [hit.position for hit in best.hits()] == [1, 2, 3, 4, 5]
    assert read == 1
