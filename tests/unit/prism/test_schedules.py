"""Logs under every way of folding."""

from dataclasses import replace

from hypothesis import strategies as st

from service.domain.prism.amendments import Amendment, Op
from service.domain.prism.schedules import (
    LoggedStep,
    StepLog,
    adaptive,
    compare,
    compare_all,
)
from service.domain.prism.spec import PrismSpec
from service.domain.spend.prices import CacheFamily
from service.domain.values.paths import Path
from tests.support.prices import PLAIN

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


def log_of(made: list[LoggedStep], task_tokens: int = 0) -> StepLog:
    return StepLog(schema=SCHEMA, steps=made, task_tokens=task_tokens)


def put(key: str, text: str, *, cold: bool = False) -> LoggedStep:
    one = Amendment(path=Path(("topics", key)), op=Op.UPDATE, value=text)
    return LoggedStep(amendments=[one], chunk_tokens=100, output_tokens=10, cold=cold)


def test_all_tokens_are_counted_once() -> None:
    log = log_of([put("a", "one"), put("b", "two" * 50), put("a", "three")], task_tokens=30)
    found = compare(log, PLAIN)
    for tokens in (found.in_place, found.amendments, found.adaptive):
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
    assert found.adaptive == found.in_place
    assert found.adaptive.cost(PLAIN) == 0


def test_adaptive_folds_and_is_not_dearer_than_either() -> None:
    log = log_of([put(f"k{n % 7}", f"value {n} " * 10) for n in range(200)])
    for at in (PLAIN, HALF, COARSE, MARKED):
        found = compare(log, at)
        assert found.adaptive.folds > 1
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
