"""Tests of the time between two tries."""

import pytest

from service.domain.values.pausing import MAX_ASKED_SECONDS, MAX_LATER, MAX_SECONDS, pause_seconds

TIMES = 200


@pytest.mark.parametrize(("failures", "doubled"), [(0, 2.0), (1, 4.0), (5, 64.0)])
def test_a_pause_doubles_and_is_spread_below_that(failures: int, doubled: float) -> None:
    found = [pause_seconds(2.0, failures) for _ in range(TIMES)]
    assert all(doubled / 2 <= seconds <= doubled for seconds in found)
    assert max(found) - min(found) > doubled / 4


@pytest.mark.parametrize("failures", [20, 5_000, 2**40])
def test_no_number_of_failures_waits_longer_than_the_bound(failures: int) -> None:
    assert MAX_SECONDS / 2 <= pause_seconds(2.0, failures) <= MAX_SECONDS


def test_never_sooner_than_asked_and_not_all_at_once() -> None:
    found = [pause_seconds(0.01, 3, asked_seconds=40.0) for _ in range(TIMES)]
    assert all(40.0 <= seconds <= 40.0 * (1 + MAX_LATER) for seconds in found)
    assert max(found) - min(found) > 40.0 * MAX_LATER / 2


def test_what_asks_for_a_day_is_tried_within_hours() -> None:
    found = pause_seconds(1.0, 0, asked_seconds=86_400.0)
    assert MAX_ASKED_SECONDS <= found <= MAX_ASKED_SECONDS * (1 + MAX_LATER)
