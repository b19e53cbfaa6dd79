"""BM25, and which texts need not be looked at."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.domain.search.ranking import Ranking, promising

TEXTS = st.lists(
    st.dictionaries(st.sampled_from("abcd"), st.integers(1, 20), min_size=1),
    min_size=1,
    max_size=30,
)


def test_a_known_figure() -> None:
    # ln(1 + (2 - 1 + .5) / (1 + .5)) = ln 2; 2 occurrences in a text of the mean length.
    ranking = Ranking(texts=2, tokens=20, holders={"a": 1})
    assert ranking.score({"a": 2}, 10) == pytest.approx(0.6931471806 * 2 * 2.2 / 3.2)
    assert ranking.score({}, 10) == 0


@given(TEXTS, st.integers(1, 5))
def test_what_is_left_out_is_not_among_the_best(texts: list[dict[str, int]], count: int) -> None:
    tokens = [10 + sum(text.values()) for text in texts]
    holders = {word: sum(word in text for text in texts) for word in "abcd"}
    ranking = Ranking(texts=len(texts), tokens=sum(tokens), holders=holders)
    scores = [ranking.score(*one) for one in zip(texts, tokens, strict=True)]
    bounds = [ranking.bounds(*one) for one in zip(texts, tokens, strict=True)]
    kept = promising(bounds, count, limit=len(texts))
    for score, (least, most) in zip(scores, bounds, strict=True):
        assert least <= score + 1e-9
        assert score <= most
    best = sorted(scores, reverse=True)[:count]
    assert sorted((scores[index] for index in kept), reverse=True)[: len(best)] == best


def test_of_too_many_those_with_the_highest_bounds_are_kept() -> None:
    assert promising([(1, 5), (2, 9), (2, 9), (3, 7)], 1, limit=2) == [1, 2]
    assert promising([(1, 5), (2, 9)], 2, limit=2) == [0, 1]
