"""The schedule of a campaign: by its seed alone, with every kind of fault in it."""

from collections import Counter
from itertools import pairwise

from verification.chaos.schedule import POSTGRES_SECONDS, Kind, schedule

POINTS = ("append.locked", "step.read")


def test_the_same_seed_makes_the_same_schedule_and_another_one_another() -> None:
    assert schedule(7, 60, POINTS) == schedule(7, 60, POINTS)
    assert schedule(7, 60, POINTS) != schedule(8, 60, POINTS)


def test_each_kind_comes_once_at_least_however_short_it_is() -> None:
    faults = schedule(1, 2, POINTS)
    assert {fault.kind for fault in faults} == set(Kind)
    assert [fault.at_seconds for fault in faults] == sorted(fault.at_seconds for fault in faults)
    assert all(0 <= fault.at_seconds <= 2 for fault in faults)


def test_a_long_one_has_about_as_many_as_its_rate_says_and_spares_postgresql() -> None:
    faults = schedule(1, 1000, POINTS, rate=5)
    assert len(faults) == 5000
    counts = Counter(fault.kind for fault in faults)
    assert counts[Kind.KILL] > 100
    lost = [one.at_seconds for one in faults if one.kind is Kind.POSTGRES_KILL]
    assert len(lost) > 5
    assert min(b - a for a, b in pairwise(lost)) >= POSTGRES_SECONDS


def test_without_fail_points_nothing_is_to_fail_there() -> None:
    kinds = {fault.kind for fault in schedule(1, 100, ())}
    assert kinds == set(Kind) - {Kind.RAISE, Kind.SLEEP, Kind.POINT_KILL}
