"""The points of the product: derived from its source, and each reported in one place."""

import random
import re

import pytest

from verification.chaos.__main__ import _parser
from verification.chaos.points import points, reporters, skipped
from verification.sweep import running

#: A boundary that is taken away is to be noticed.
LEAST_POINTS = 147
#: Several places do the same, on purpose.
SHARED = {"calls.renew", "commit.step", "queue.hint"}


@pytest.mark.prove
def test_each_point_is_reported_in_one_place() -> None:
    places = reporters()
    assert set(places) == set(points())
    assert len(points()) >= LEAST_POINTS
    # One name, one boundary: else a schedule would not know where a process fails.
    several = {point.partition(":")[0] for point, found in places.items() if len(found) > 1}
    assert several == SHARED


def test_points_have_a_name_and_a_step() -> None:
    form = re.compile(r"[a-z]+(\.[a-z_]+)?:[a-z]+")
    assert [one for one in points() if not form.fullmatch(one)] == []


@pytest.mark.parametrize(
    "point",
    ["commit.tree:statement", "commit.step:committed", "recovery.note:commit", "model:replied"],
)
def test_points_are_found(point: str) -> None:
    assert point in points()


def test_transactions_that_only_read_are_no_points() -> None:
    assert not any(one.startswith(("doctor", "history", "verify")) for one in points())


def test_any_of_the_first_statements_may_fail_and_any_other_point_the_first_time() -> None:
    rng = random.Random(1)
    assert {skipped(rng, "commit.tree:statement") for _ in range(50)} == {0, 1, 2}
    assert {skipped(rng, "commit.tree:commit") for _ in range(50)} == {0}


def test_a_sweep_refuses_a_point_that_is_none() -> None:
    given = _parser().parse_args(["sweep", "--points", "commit.tree:commit,commit.tre:commit"])
    with pytest.raises(ValueError, match=r"commit\.tre:commit"):
        running.run_given(given)
