"""The optimum against exhaustive search."""

from itertools import combinations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from evaluation.hindsight import optimum as searching
from evaluation.hindsight.schedules import best, best_of_all
from service.domain.prism.schedules import LoggedStep, adaptive, compare, scheduled
from service.domain.spend.prices import ModelPrices
from tests.support.prices import PLAIN
from tests.support.properties import examples
from tests.unit.prism.test_schedules import COARSE, FREE, HALF, MARKED, log_of, prices, put, steps


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(steps, min_size=1, max_size=8), prices, st.sampled_from((0, 20)))
def test_no_schedule_is_cheaper_than_the_optimum(
    made: list[LoggedStep], at: ModelPrices, task_tokens: int
) -> None:
    log = log_of(made, task_tokens)
    with pytest.MonkeyPatch.context() as patch:
        # Often, so that what is dropped is tested as well.
        patch.setattr(searching, "PRUNE_STEPS", 1)
        found = best(log, at).cost(at)
    plans = [plan for size in range(len(made) + 1) for plan in combinations(range(len(made)), size)]
    exhaustive = min(scheduled(log, at, plan).cost(at) for plan in plans)
    assert found <= exhaustive + 1e-6
    # Only another order of the keys can be cheaper than that.
    if all(step.amendments == () for step in made) or at is MARKED:
        assert found == pytest.approx(exhaustive)


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(steps, min_size=1, max_size=9), prices)
@example([put("a", "x" * 60), put("a", "y"), put("a", "x" * 60), put("b", "y" * 60)], PLAIN)
def test_the_search_is_exact_for_keys_in_the_order_they_came(
    made: list[LoggedStep], at: ModelPrices
) -> None:
    log = log_of(made)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(searching, "PRUNE_STEPS", 1)
        # One layout: nothing is known in hindsight.
        patch.setattr("evaluation.hindsight.schedules.LEVELS", 0)
        found = best(log, at).cost(at)
    plans = [plan for size in range(len(made)) for plan in combinations(range(1, len(made)), size)]
    exhaustive = min(scheduled(log, at, plan).cost(at) for plan in plans)
    assert found == pytest.approx(exhaustive)


def test_a_value_that_comes_back_makes_a_fold_cheap() -> None:
    log = log_of([put("a", "x" * 400), put("b", "z" * 400), put("a", "y"), put("a", "x" * 400)])
    log = log_of([*log.steps, *[put("b", "z" * 400)] * 6])
    assert best(log, PLAIN).cost(PLAIN) < compare(log, PLAIN).amendments.cost(PLAIN)


def test_a_search_that_keeps_few_candidates_still_finds_a_schedule(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = log_of([put(f"k{n % 9}", f"value {n} " * 5) for n in range(150)])
    exact = best(log, PLAIN).cost(PLAIN)
    monkeypatch.setattr(searching, "MAX_CANDIDATES", 8)
    assert exact <= best(log, PLAIN).cost(PLAIN) <= compare(log, PLAIN).in_place.cost(PLAIN)


def test_prices_that_are_searched_together_are_as_if_alone() -> None:
    log = log_of([put(key, f"{n}" * 40) for n, key in enumerate("abacabadabacaba")])
    many = [PLAIN, HALF, FREE]
    assert list(best_of_all(log, many)) == [best(log, one) for one in many]


def test_a_log_of_nothing_costs_nothing() -> None:
    assert best(log_of([]), PLAIN).cost(PLAIN) == 0


def test_folding_by_price_is_near_the_optimum() -> None:
    log = log_of([put(f"k{n % 7}", f"value {n} " * 10) for n in range(200)])
    for at in (PLAIN, HALF, COARSE, MARKED):
        assert adaptive(log, at).cost(at) <= 1.05 * best(log, at).cost(at)
