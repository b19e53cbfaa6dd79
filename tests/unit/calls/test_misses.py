"""Why a provider's cache had other tokens than predicted: one example of each, and totals."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.llm.prefix_cache.misses import Evidence, MissReason, classify

EVEN = Evidence(
    known=True, predicted_tokens=1024, reported_tokens=1024, granularity_tokens=128, hits=5
)


@pytest.mark.parametrize(
    ("seen", "reason"),
    [
        (EVEN, MissReason.NONE),
        (replace(EVEN, reported_tokens=896), MissReason.NONE),
        (replace(EVEN, reported_tokens=1152), MissReason.NONE),
        (replace(EVEN, predicted_tokens=0, reported_tokens=0), MissReason.NONE),
        (
            replace(EVEN, granularity_tokens=1, predicted_tokens=5000, reported_tokens=4901),
            MissReason.NONE,
        ),
        (replace(EVEN, reported_tokens=1280), MissReason.MORE),
        (replace(EVEN, predicted_tokens=0, reported_tokens=1024), MissReason.MORE),
        (replace(EVEN, reported_tokens=0, misses_in_a_row=1, cold_owners=1), MissReason.EVICTED),
        (replace(EVEN, reported_tokens=512, misses_in_a_row=9), MissReason.EVICTED),
        (
            replace(EVEN, predicted_tokens=0, reported_tokens=0, elsewhere_tokens=1024),
            MissReason.MISROUTED,
        ),
        (replace(EVEN, elsewhere_tokens=4096), MissReason.MISROUTED),
        (replace(EVEN, reported_tokens=4096, elsewhere_tokens=4096), MissReason.MORE),
        (replace(EVEN, reported_tokens=512, hits=0, misses_in_a_row=3), MissReason.DRIFT),
        (replace(EVEN, reported_tokens=0, hits=0, misses_in_a_row=7), MissReason.DRIFT),
        (replace(EVEN, reported_tokens=0, hits=0, misses_in_a_row=2), MissReason.EVICTED),
        (replace(EVEN, reported_tokens=0, misses_in_a_row=3, cold_owners=3), MissReason.OUTAGE),
        (
            replace(EVEN, reported_tokens=0, misses_in_a_row=1, cold_owners=1, cold_deployments=2),
            MissReason.OUTAGE,
        ),
        (replace(EVEN, reported_tokens=None), MissReason.UNKNOWN),
        (replace(EVEN, known=False, predicted_tokens=0, reported_tokens=900), MissReason.UNKNOWN),
    ],
)
def test_each_class(seen: Evidence, reason: MissReason) -> None:
    assert classify(seen) is reason


_TOKENS = st.integers(0, 100_000)


@given(
    st.builds(
        Evidence,
        known=st.just(True),
        predicted_tokens=_TOKENS,
        reported_tokens=_TOKENS,
        granularity_tokens=st.sampled_from([1, 16, 128]),
        elsewhere_tokens=_TOKENS,
        hits=st.integers(0, 5),
        misses_in_a_row=st.integers(0, 5),
        cold_owners=st.integers(0, 5),
        cold_deployments=st.integers(0, 5),
    )
)
def test_more_is_never_called_a_loss_and_less_never_more(seen: Evidence) -> None:
    found = classify(seen)
    assert seen.reported_tokens is not None
    if seen.reported_tokens > seen.predicted_tokens:
        assert found in {MissReason.NONE, MissReason.MORE, MissReason.MISROUTED}
    else:
        assert found is not MissReason.MORE
    assert found is not MissReason.UNKNOWN
