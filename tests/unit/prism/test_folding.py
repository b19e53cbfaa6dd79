"""When a memory is folded by price, and what is counted for it."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.domain.prism.amendments import Amendment, Op
from service.domain.prism.folding import (
    FoldState,
    PromptSizes,
    fold,
    fold_price,
    folded,
    is_due,
    keeping,
    prefix,
    rent,
)
from service.domain.prism.memory import PrismMemory
from service.domain.prism.ordering import Changes
from service.domain.prism.spec import PrismSpec
from service.domain.spend.prices import CacheFamily
from service.domain.values.beginnings import common_characters
from service.domain.values.paths import Path
from tests.support.prices import PLAIN

SPEC = PrismSpec(schema_source="class N:\n    topics: dict[str, str]\n")
#: A hundred of thousand tokens are dead.
SIZES = PromptSizes(task=0, shown=1100, fresh=20, live=1000, kept=400)
NEW = FoldState.anew(0)


def put(topic: str, text: str) -> Amendment:
    return Amendment(path=Path(("topics", topic)), op=Op.UPDATE, value=text)


def test_a_prefix_is_read_as_far_as_it_is_warm_and_written_after() -> None:
    assert prefix(1000, 600, PLAIN).cost(PLAIN) == pytest.approx(60 + 500)
    coarse = replace(PLAIN, granularity_tokens=128)
    assert prefix(1000, 600, coarse).cached == 512


def test_a_prefix_that_is_too_short_for_the_cache_is_paid_in_full() -> None:
    strict = replace(PLAIN, min_tokens=1024)
    assert prefix(1000, 1000, strict).cost(strict) == 1000
    assert prefix(2000, 1000, strict).cached == 0


def test_what_a_fold_costs_is_what_is_written_again() -> None:
    # w(L-p) - r(b-p) - r(a-δ) - wδ, with b + a = 1100.
    expected = 1.25 * (1000 - 400) - 0.1 * (1100 - 20 - 400) - 1.25 * 20
    assert fold_price(SIZES, PLAIN) == pytest.approx(expected)
    assert rent(SIZES, PLAIN) == pytest.approx(10)


def test_it_is_folded_when_the_rent_has_come_up_to_the_price() -> None:
    state, prompts = NEW, 0
    while not is_due(SIZES, state, PLAIN):
        state, prompts = state.stepped(SIZES, PLAIN), prompts + 1
    price = fold_price(SIZES, PLAIN)
    paid = prompts * rent(SIZES, PLAIN)
    # All of it was there from the start: what a mix of both estimates says is less.
    assert price <= paid <= 5 * price
    assert state.rent == pytest.approx(paid)


def test_a_burst_is_seen_at_once() -> None:
    quiet = replace(NEW, prompts=200)
    assert is_due(SIZES, quiet, PLAIN)
    assert not is_due(SIZES, replace(NEW, prompts=20), PLAIN)


def test_what_adds_only_is_not_folded_for_nothing() -> None:
    grown = replace(SIZES, shown=1000)
    assert not is_due(grown, replace(NEW, prompts=1000), PLAIN)
    assert not is_due(replace(grown, shown=990), replace(NEW, prompts=1000), PLAIN)


def test_a_fold_that_costs_less_than_keeping_is_made() -> None:
    tail = replace(SIZES, kept=995, fresh=60)
    assert fold_price(tail, PLAIN) < 0
    assert is_due(tail, NEW, PLAIN)


def test_when_the_cache_is_cold_whatever_is_dead_is_folded_away() -> None:
    assert not is_due(SIZES, NEW, PLAIN)
    assert is_due(SIZES, NEW, PLAIN, cold=True)
    assert fold_price(SIZES, PLAIN, cold=True) == pytest.approx(-1.25 * 100)
    assert not is_due(replace(SIZES, shown=1000), NEW, PLAIN, cold=True)


def test_below_the_least_prefix_dead_tokens_are_folded_at_once() -> None:
    strict = replace(PLAIN, min_tokens=4096)
    assert fold_price(SIZES, strict) == -100
    assert is_due(SIZES, NEW, strict)
    long_task = replace(SIZES, task=4000)
    assert not is_due(long_task, NEW, strict), "with its task the prefix is long enough"


def test_with_marks_nothing_of_the_old_base_is_found_again() -> None:
    marked = replace(PLAIN, family=CacheFamily.EXPLICIT)
    assert folded(replace(SIZES, task=500), marked).cached == 500
    assert fold_price(SIZES, marked) > fold_price(SIZES, PLAIN)
    same = replace(SIZES, kept=SIZES.live)
    assert folded(same, marked).cached == 1000, "unless it is the old base again"


def test_dead_tokens_that_keep_a_prefix_long_enough_are_welcome() -> None:
    strict = replace(PLAIN, min_tokens=1050)
    assert rent(SIZES, strict) < 0
    assert not is_due(SIZES, replace(NEW, prompts=1000), strict)


def test_sizes_know_what_the_last_prompt_showed() -> None:
    memory = PrismMemory.create(SPEC.schema()).apply(1, [put("a", "x" * 400)]).fold()
    memory = memory.apply(3, [put("b", "y" * 40)]).apply(4, [put("a", "z" * 400)])
    sizes = PromptSizes.of(memory, 7, 3)
    assert (sizes.task, sizes.shown) == (7, memory.shown_tokens)
    assert sizes.fresh == memory.count(memory.batches[-1].text)
    assert sizes.kept == memory.live_tokens * len('{"topics":{"a":"') // len(memory.value_json)
    assert PromptSizes.of(memory, 7, 2).fresh == memory.amendment_tokens


def test_a_fold_ends_what_was_counted_for_it() -> None:
    memory = PrismMemory.create(SPEC.schema()).apply(1, [put("a", "one")]).fold()
    memory = memory.apply(2, [put("a", "two")])
    state = FoldState(revision=2, prompted=1, rent=7.5, prompts=3)
    new, after = fold(memory, state, PLAIN)
    assert (new.base_json, new.batches) == (memory.value_json, ())
    assert (after.revision, after.rent, after.prompts) == (3, 0, 0)
    assert after.changes.counts[("topics", "a")] == 1


def test_the_state_is_read_back_as_it_was_written() -> None:
    changes = Changes(folds=3, counts={("topics", "a"): 2, ("topics", ""): 1})
    state = FoldState(revision=9, prompted=8, rent=12.625, prompts=4, changes=changes)
    assert FoldState.from_json(state.to_json(), 9) == state


@pytest.mark.parametrize(
    "stored",
    [None, 3, [], {}, {"revision": 9}, {"revision": 8, "prompted": 7}, {"revision": "9"}],
)
def test_what_is_missing_or_stale_or_strange_is_begun_anew(stored: object) -> None:
    assert FoldState.from_json(stored, 9) == FoldState(revision=9, prompted=8)


def test_a_state_of_another_revision_is_stale() -> None:
    state = FoldState(revision=9, prompted=8, rent=12.5, prompts=4)
    assert FoldState.from_json(state.to_json(), 10) == FoldState.anew(10)


@given(st.text("ab"), st.text("ab"), st.text("ab"))
def test_common_characters_are_those_that_are_alike(head: str, one: str, other: str) -> None:
    one, other = head + one, head + other
    count = common_characters(one, other, len(head))
    assert one[:count] == other[:count]
    assert one[count : count + 1] != other[count : count + 1] or count in (len(one), len(other))
    assert common_characters(one, other) == count


@given(st.integers(0, 400), st.integers(1, 300), st.integers(1, 64), st.integers(0, 200))
def test_all_tokens_of_a_prefix_are_paid_once(
    tokens: int, warm: int, granularity: int, least: int
) -> None:
    prices = replace(PLAIN, granularity_tokens=granularity, min_tokens=least)
    parts = prefix(tokens, min(warm, tokens), prices)
    assert parts.cached + parts.written + parts.fresh == tokens
    assert parts.cached % granularity == 0
    assert parts.cached <= warm


def test_cold_prompts_find_nothing() -> None:
    assert keeping(SIZES, PLAIN, cold=True).cached == 0
    assert folded(SIZES, PLAIN, cold=True).written == 1000
