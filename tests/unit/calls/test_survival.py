"""The chance that a prefix survived, by its age."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.llm.prefix_cache.cache import BUCKETS, DEFAULT_CHANCE, bucket_of, chance
from storage.calls import deployment_state


def test_the_index_counts_by_the_same_buckets() -> None:
    assert BUCKETS == deployment_state.BUCKETS == len(DEFAULT_CHANCE)


@pytest.mark.parametrize(
    ("age", "bucket"),
    [
        (0, 0),
        (60, 0),
        (60.1, 1),
        (120, 1),
        (240, 2),
        (241, 3),
        (300, 3),
        (301, 4),
        (600, 4),
        (601, 5),
    ],
)
def test_ages_of_a_cache_that_keeps_five_minutes(age: float, bucket: int) -> None:
    assert bucket_of(age, 300) == bucket


def test_a_short_time_to_live_has_fewer_buckets() -> None:
    assert [bucket_of(age, 60) for age in (0, 60, 61, 120, 121)] == [0, 0, 4, 4, 5]


@given(st.floats(0, 1e6), st.floats(0, 1e6), st.integers(1, 10_000))
def test_older_is_never_in_an_earlier_bucket(one: float, other: float, ttl: int) -> None:
    younger, older = sorted((one, other))
    assert 0 <= bucket_of(younger, ttl) <= bucket_of(older, ttl) < BUCKETS
    if older > ttl:
        assert bucket_of(older, ttl) >= BUCKETS - 2


def test_nothing_known_means_the_default_and_outcomes_win_over_it() -> None:
    assert [chance(bucket, ()) for bucket in range(BUCKETS)] == pytest.approx(DEFAULT_CHANCE)
    lost = [(0.0, 100.0)] * BUCKETS
    kept = [(100.0, 0.0)] * BUCKETS
    assert chance(0, lost) < 0.05
    assert chance(5, kept) > 0.95


@given(st.integers(0, BUCKETS - 1), st.floats(0, 1e6), st.floats(0, 1e6))
def test_it_is_a_chance(bucket: int, survived: float, lost: float) -> None:
    assert 0 < chance(bucket, [(survived, lost)] * BUCKETS) < 1
