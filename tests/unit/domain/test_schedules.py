"""The optimum against exhaustive search, and logs under every way of folding."""

from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from service.domain.paths import Path
from service.domain.prices import CacheFamily, ModelPrices
from service.domain.prism import optimum as searching
from service.domain.prism.amendments import Amendment, Op
from service.domain.prism.schedules import (
    Log,
    LoggedStep,
    adaptive,
    compare,
    compare_all,
    scheduled,
)
from service.domain.prism.spec import PrismSpec
from tests.prices import PLAIN

SCHEMA = PrismSpec(schema_source="class N:\n    topics: dict[str, str]\n").schema()
HALF = replace(PLAIN, read=0.5, write=1.0, output=4)
FREE = replace(PLAIN, read=0.0, write=1.0, output=3)
COARSE = replace(PLAIN, granularity_tokens=8, min_tokens=16)
MARKED = replace(PLAIN, family=CacheFamily.EXPLICIT)

amendments = st.builds(
    lambda key, letter, size: Amendment(
        path=Path(("topics", key)), op=Op.UPDATE, value=letter * size
    ),
    st.sampled_from("abcd"),
    # Few values, so that they come back.
    st.sampled_from("xy"),
    st.sampled_from((1, 8, 60)),
)
steps = st.builds(
    lambda made, cold: LoggedStep(amendments=made, chunk_tokens=50, output_tokens=9, cold=cold),
    st.lists(amendments, max_size=2),
    st.sampled_from((False, False, False, True)),
)
prices = st.sampled_from((PLAIN, HALF, FREE, COARSE, MARKED))


def log_of(made: list[LoggedStep], task_tokens: int = 0) -> Log:
    return Log(schema=SCHEMA, steps=made, task_tokens=task_tokens)


def put(key: str, text: str, *, cold: bool = False) -> LoggedStep:
    one = Amendment(path=Path(("topics", key)), op=Op.UPDATE, value=text)
    return LoggedStep(amendments=[one], chunk_tokens=100, output_tokens=10, cold=cold)


@settings(max_examples=150, deadline=None)
@given(st.lists(steps, min_size=1, max_size=8), prices, st.sampled_from((0, 20)))
def test_no_schedule_is_cheaper_than_the_optimum(
    made: list[LoggedStep], at: ModelPrices, task_tokens: int
) -> None:
    log = log_of(made, task_tokens)
    with pytest.MonkeyPatch.context() as patch:
        # Often, so that what is dropped is tested as well.
        patch.setattr(searching, "PRUNE_STEPS", 1)
        found = compare(log, at).optimum.cost(at)
    plans = [plan for size in range(len(made) + 1) for plan in combinations(range(len(made)), size)]
    exhaustive = min(scheduled(log, at, plan).cost(at) for plan in plans)
    assert found <= exhaustive + 1e-6
    # Only another order of the keys can be cheaper than that.
    if all(step.amendments == () for step in made) or at is MARKED:
        assert found == pytest.approx(exhaustive)


@settings(max_examples=100, deadline=None)
@given(st.lists(steps, min_size=1, max_size=9), prices)
@example([put("a", "x" * 60), put("a", "y"), put("a", "x" * 60), put("b", "y" * 60)], PLAIN)
def test_the_search_is_exact_for_keys_in_the_order_they_came(
    made: list[LoggedStep], at: ModelPrices
) -> None:
    log = log_of(made)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(searching, "PRUNE_STEPS", 1)
        # One layout: nothing is known in hindsight.
        patch.setattr("service.domain.prism.schedules.LEVELS", 0)
        found = compare(log, at).optimum.cost(at)
    plans = [plan for size in range(len(made)) for plan in combinations(range(1, len(made)), size)]
    exhaustive = min(scheduled(log, at, plan).cost(at) for plan in plans)
    assert found == pytest.approx(exhaustive)


def test_a_value_that_comes_back_makes_a_fold_cheap() -> None:
    log = log_of([put("a", "x" * 400), put("b", "z" * 400), put("a", "y"), put("a", "x" * 400)])
    found = compare(log_of([*log.steps, *[put("b", "z" * 400)] * 6]), PLAIN)
    assert found.optimum.cost(PLAIN) < found.amendments.cost(PLAIN)


def test_all_tokens_are_counted_once() -> None:
    log = log_of([put("a", "one"), put("b", "two" * 50), put("a", "three")], task_tokens=30)
    found = compare(log, PLAIN)
    for tokens in (found.in_place, found.amendments, found.adaptive, found.optimum):
        assert tokens.output == 30
        assert tokens.fresh == 300
    assert found.in_place.folds == 3
    assert found.amendments.folds == 0
    # The first prompt is cold: the task, and an empty memory.
    assert found.amendments.written >= 31


def test_prices_that_are_compared_together_are_as_if_alone() -> None:
    log = log_of([put(key, f"{n}" * 40) for n, key in enumerate("abacabadabacaba")])
    many = [PLAIN, HALF, FREE]
    assert list(compare_all(log, many)) == [compare(log, one) for one in many]


def test_a_log_of_nothing_costs_nothing() -> None:
    found = compare(log_of([]), PLAIN)
    assert found.optimum == found.adaptive == found.in_place
    assert found.optimum.cost(PLAIN) == 0


def test_adaptive_folds_and_is_near_the_optimum() -> None:
    log = log_of([put(f"k{n % 7}", f"value {n} " * 10) for n in range(200)])
    for at in (PLAIN, HALF, COARSE, MARKED):
        found = compare(log, at)
        assert found.adaptive.folds > 1
        assert found.adaptive.cost(at) <= 1.05 * found.optimum.cost(at)
        fixed = min(found.in_place.cost(at), found.amendments.cost(at))
        assert found.adaptive.cost(at) <= 1.01 * fixed


def test_a_cold_prompt_is_the_time_to_fold() -> None:
    base = '{"topics":{"a":"x","b":"' + "y" * 8000 + '"}}'
    warm = log_of([put("a", "z"), put("c", "q"), put("c", "r")])
    assert adaptive(replace(warm, base_json=base), PLAIN).folds == 0
    cold = log_of([put("a", "z"), put("c", "q"), put("c", "r", cold=True)])
    assert adaptive(replace(cold, base_json=base), PLAIN).folds == 1


def test_replaying_a_log_gives_the_same_again() -> None:
    log = log_of([put(f"k{n % 5}", f"value {n} " * (n % 4 + 1)) for n in range(120)])
    assert adaptive(log, PLAIN) == adaptive(log, PLAIN)


def test_a_search_that_keeps_few_candidates_still_finds_a_schedule(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = log_of([put(f"k{n % 9}", f"value {n} " * 5) for n in range(150)])
    exact = compare(log, PLAIN).optimum.cost(PLAIN)
    monkeypatch.setattr(searching, "MAX_CANDIDATES", 8)
    found = compare(log, PLAIN)
    assert exact <= found.optimum.cost(PLAIN) <= found.in_place.cost(PLAIN)
