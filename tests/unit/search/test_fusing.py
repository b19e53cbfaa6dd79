"""Fusing rankings by normalized scores."""

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.domain.search.fusing import (
    JUDGED_HITS,
    LEADERS,
    MIN_AGREEMENT,
    ScoredChunk,
    fuse,
)

#: As many as each way of searching names.
DEPTH = 100


def hits(scores: dict[int, float]) -> list[ScoredChunk]:
    best_first = sorted(scores.items(), key=lambda one: (-one[1], one[0]))
    return [ScoredChunk(position=at, score=score) for at, score in best_first]


def found(*rankings: dict[int, float], weight: float = 1.0) -> list[int]:
    words, *others = rankings
    fused = fuse([(1.0, hits(words)), *((weight, hits(one)) for one in others)])
    return [one.position for one in fused]


rankings = st.dictionaries(st.integers(1, 30), st.floats(0.0, 40.0), max_size=20).map(hits)
weighted = st.lists(st.tuples(st.sampled_from([0.5, 1.0, 2.0]), rankings), max_size=3)


def test_a_score_is_the_mean_of_shares() -> None:
    # Words lead by 1 - 15/10/10, vectors by 1 - 1.5/10; there are too few to judge agreement.
    first, second, third = fuse(
        [(1.0, hits({1: 4.0, 2: 2.0})), (2.0, hits({2: 0.9, 3: 0.1, 4: 0.5}))]
    )[:3]
    words, vectors = 1 - 1.5 / LEADERS, 2 * MIN_AGREEMENT * (1 - 1.5 / LEADERS)
    assert (first.position, first.ranks) == (1, (1, 0))
    assert first.score == pytest.approx(words / (words + vectors))
    assert (second.position, second.ranks) == (2, (2, 1))
    assert second.score == pytest.approx((words / 2 + vectors) / (words + vectors))
    assert (third.position, third.ranks) == (4, (0, 2))
    assert third.score == pytest.approx(vectors / 2 / (words + vectors))


def test_the_best_of_every_ranking_has_one() -> None:
    assert fuse([(1.0, hits({1: 4.0, 2: 2.0})), (0.5, hits({1: 0.9, 3: 0.1}))])[0].score == 1.0
    assert fuse([(1.0, []), (0.5, hits({1: 0.9, 3: 0.1}))])[0].score == 1.0


def test_among_equals_the_better_rank_wins_then_the_earlier_position() -> None:
    assert found({5: 1.0, 4: 1.0, 7: 1.0}) == [4, 5, 7]
    # All alike in one ranking: their ranks decide.
    held = [ScoredChunk(position=at, score=1.0) for at in (9, 3, 6)]
    assert [one.position for one in fuse([(1.0, held)])] == [9, 3, 6]
    # The last hit of the vectors adds nothing, as if it were not there.
    fused = fuse([(1.0, hits({8: 2.0, 6: 1.0})), (1.0, hits({8: 0.5, 2: 0.4, 1: 0.4}))])
    assert [one.position for one in fused] == [8, 6, 1, 2]


def test_nothing_found_is_nothing() -> None:
    assert fuse([]) == []
    assert fuse([(1.0, []), (1.0, [])]) == []


def test_a_chunk_with_the_only_rare_word_stays_first() -> None:
    cosines = {at: 0.9 - at / 200 for at in range(1, DEPTH + 1)}
    assert found({77: 8.5}, cosines, weight=1.5)[0] == 77


def test_vectors_that_agree_count_more() -> None:
    words = {at: 10.0 - at for at in range(1, 9)}
    agreeing = {at: 0.9 - at / 20 for at in range(1, 9)} | {20: 0.95}
    opposed = {at: 0.1 + at / 20 for at in range(1, 9)} | {20: 0.95}
    assert found(words, agreeing, weight=1.5).index(20) < found(words, opposed, weight=1.5).index(
        20
    )


def test_words_that_are_all_alike_leave_the_choice_to_vectors() -> None:
    words = dict.fromkeys(range(1, 2 * LEADERS + 1), 1.0)
    cosines = dict.fromkeys(range(1, DEPTH), 0.2) | {13: 0.8}
    assert found(words, cosines)[0] == 13


def test_vectors_that_say_nothing_hardly_change_the_best_by_words() -> None:
    """Vectors of chance, in a session as long as a chat: four of the five best stay."""
    chance = random.Random(5)
    kept = []
    for _ in range(100):
        words = {at: chance.expovariate(0.5) for at in range(1, 61)}
        cosines = {at: chance.gauss(0.0, 0.05) for at in range(1, 201)}
        nearest = {one.position: one.score for one in hits(cosines)[:DEPTH]}
        best = set(found(words)[:5])
        kept.append(len(best & set(found(words, nearest, weight=1.5)[:5])))
    assert sum(kept) / len(kept) >= 4.0


@given(weighted)
def test_all_hits_are_there_once_and_in_order(
    given_rankings: list[tuple[float, list[ScoredChunk]]],
) -> None:
    fused = fuse(given_rankings)
    wanted = {hit.position for _, held in given_rankings for hit in held}
    assert sorted(one.position for one in fused) == sorted(wanted)
    scores = [one.score for one in fused]
    assert scores == sorted(scores, reverse=True)
    assert all(0 <= score <= 1 + 1e-9 for score in scores)
    for one in fused:
        assert list(one.ranks) == [rank_of(one.position, held) for _, held in given_rankings]


@given(rankings, rankings, st.sampled_from([0.5, 1.0, 2.0]))
def test_one_ranking_alone_stays_as_it_is(
    held: list[ScoredChunk], other: list[ScoredChunk], weight: float
) -> None:
    positions = [hit.position for hit in held]
    assert [one.position for one in fuse([(weight, held), (1.0, [])])] == positions
    assert [one.position for one in fuse([(1.0, []), (weight, held)])] == positions


@given(rankings, rankings)
def test_what_is_as_good_everywhere_is_never_after(
    words: list[ScoredChunk], vectors: list[ScoredChunk]
) -> None:
    fused = [one.position for one in fuse([(1.0, words), (1.5, vectors)])]
    for at, later in enumerate(fused):
        for earlier in fused[:at]:
            better = [
                rank_of(later, held) > 0 and rank_of(later, held) < (rank_of(earlier, held) or 999)
                for held in (words, vectors)
            ]
            assert not all(better), "it is better by both"


@given(rankings, rankings)
def test_the_scale_of_scores_does_not_count(
    words: list[ScoredChunk], vectors: list[ScoredChunk]
) -> None:
    def scaled(held: Sequence[ScoredChunk], by: float) -> list[ScoredChunk]:
        return [ScoredChunk(position=hit.position, score=hit.score * by) for hit in held]

    plain = fuse([(1.0, words), (1.5, vectors)])
    other = fuse([(1.0, scaled(words, 8.0)), (1.5, scaled(vectors, 0.25))])
    scores = {one.position: one.score for one in other}
    for one in plain:
        assert one.score == pytest.approx(scores[one.position], abs=1e-6)


def test_two_hits_are_too_few_to_judge() -> None:
    assert JUDGED_HITS > 2
    words = {1: 2.0, 2: 1.0}
    alike, opposed = {1: 0.9, 2: 0.5, 3: 0.1}, {2: 0.9, 1: 0.5, 3: 0.1}
    (_, second, _) = fuse([(1.0, hits(words)), (1.5, hits(alike))])
    (_, other, _) = fuse([(1.0, hits(words)), (1.5, hits(opposed))])
    assert (second.position, other.position) == (2, 2)


def rank_of(position: int, held: Sequence[ScoredChunk]) -> int:
    return next((rank for rank, hit in enumerate(held, 1) if hit.position == position), 0)
