"""Fusing rankings by reciprocal ranks."""

from hypothesis import given
from hypothesis import strategies as st

from service.domain.search.fusing import RANK_CONSTANT, ScoredChunk, fuse


def hits(*positions: int) -> list[ScoredChunk]:
    return [ScoredChunk(position=one, score=1.0) for one in positions]


rankings = st.lists(st.integers(1, 30), unique=True, max_size=20).map(lambda held: hits(*held))
weighted = st.lists(st.tuples(st.sampled_from([0.5, 1.0, 2.0]), rankings), max_size=3)


def test_what_both_found_comes_before_what_one_found() -> None:
    fused = fuse([(1.0, hits(1, 2, 3)), (1.0, hits(4, 3))])
    assert [one.position for one in fused] == [3, 1, 4, 2]
    assert [one.ranks for one in fused] == [(3, 2), (1, 0), (0, 1), (2, 0)]
    assert fused[0].score == 1 / (RANK_CONSTANT + 3) + 1 / (RANK_CONSTANT + 2)


def test_weights_decide_between_two_first_ranks() -> None:
    words, vectors = hits(1), hits(2)
    assert [one.position for one in fuse([(1.0, words), (2.0, vectors)])] == [2, 1]
    assert [one.position for one in fuse([(2.0, words), (1.0, vectors)])] == [1, 2]


def test_among_equals_the_better_rank_wins_then_the_earlier_position() -> None:
    # 1/(60+1) is 2/(60+62), which is the score of the second ranking's 62nd.
    second = hits(*range(100, 161), 7)
    fused = fuse([(1.0, hits(9)), (2.0, second)])
    places = {one.position: at for at, one in enumerate(fused)}
    assert places[9] < places[7]
    assert [one.position for one in fuse([(1.0, hits(5)), (1.0, hits(4))])] == [4, 5]


def test_nothing_found_is_nothing() -> None:
    assert fuse([]) == []
    assert fuse([(1.0, []), (1.0, [])]) == []


@given(weighted)
def test_all_hits_are_there_once_and_in_order(
    given_rankings: list[tuple[float, list[ScoredChunk]]],
) -> None:
    fused = fuse(given_rankings)
    wanted = {hit.position for _, held in given_rankings for hit in held}
    assert sorted(one.position for one in fused) == sorted(wanted)
    scores = [one.score for one in fused]
    assert scores == sorted(scores, reverse=True)
    for one in fused:
        ranks = [
            next((rank for rank, hit in enumerate(held, 1) if hit.position == one.position), 0)
            for _, held in given_rankings
        ]
        assert list(one.ranks) == ranks


@given(rankings, st.sampled_from([0.5, 1.0, 2.0]))
def test_one_ranking_alone_stays_as_it_is(held: list[ScoredChunk], weight: float) -> None:
    fused = fuse([(weight, held), (1.0, [])])
    assert [one.position for one in fused] == [hit.position for hit in held]
