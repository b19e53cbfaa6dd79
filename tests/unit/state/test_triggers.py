"""Triggers: the number of recent steps that are compressed, at every boundary."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.domain.log.chunks import Chunk, ChunkKind
from service.domain.state.spec import ADAPTIVE_SPAN, Period, StateSpec
from service.domain.state.triggers import NEW_VECTORS, SizedStep, due, least_due
from tests.unit.state.making import START, step, steps

HOUR_MS = 3_600_000
TEN = StateSpec(period=10)
ADAPTIVE = StateSpec(period=10, period_kind=Period.ADAPTIVE, state_tokens=32)


def at_seconds(*seconds: float) -> list[SizedStep]:
    return [step(position, seconds=when) for position, when in enumerate(seconds, 1)]


@pytest.mark.parametrize(
    ("period", "count", "expected"),
    [
        (10, 0, None),
        (10, 1, None),
        (10, 9, None),
        (10, 10, 10),
        (10, 11, 10),
        (10, 1000, 10),
        (1, 0, None),
        (1, 1, 1),
        (1, 2, 1),
        (2, 1, None),
        (2, 2, 2),
    ],
)
def test_every_n_steps(period: int, count: int, expected: int | None) -> None:
    assert due(StateSpec(period=period), "", steps(["text"] * count)) == expected


def test_algorithm_1_step_by_step() -> None:
    """At step t > 1 with (t - 1) mod N = 0 the last N steps are compressed."""
    recent: list[SizedStep] = []
    compressed_at: list[int] = []
    for t in range(1, 32):
        taken = due(TEN, "", recent)
        assert (taken is not None) == (t > 1 and (t - 1) % 10 == 0)
        if taken is not None:
            assert [one.position for one in recent] == list(range(t - 10, t))
            compressed_at.append(t)
            recent = recent[taken:]
        recent.append(step(t))
    assert compressed_at == [11, 21, 31]


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [([4, 5], None), ([4, 6], 2), ([4, 7], 1), ([10], 1), ([99, 1], 1), ([1, 99], 1)],
)
def test_steps_that_have_enough_tokens_together(tokens: list[int], expected: int | None) -> None:
    spec = StateSpec(period=10, period_tokens=10)
    assert due(spec, "", steps("abcd" * size for size in tokens)) == expected


@given(sizes=st.lists(st.integers(0, 90), max_size=30))
def test_what_stays_recent_never_passes_the_tokens(sizes: list[int]) -> None:
    spec = StateSpec(period=10, period_tokens=50)
    recent: list[SizedStep] = []
    for number, size in enumerate(sizes, 1):
        recent.append(step(number, "abcd" * size))
        while (taken := due(spec, "", recent)) is not None:
            assert taken == 1 or sum(one.tokens for one in recent[:taken]) <= 50
            recent = recent[taken:]
        assert sum(one.tokens for one in recent) < 50


def test_whichever_is_first() -> None:
    both = StateSpec(period=3, period_tokens=10)
    assert due(both, "", steps(["abcd"] * 5)) == 3
    assert due(both, "", steps(["abcd" * 5] * 5)) == 2


def test_a_size_is_that_of_the_text_as_a_model_reads_it() -> None:
    spec = StateSpec(period=10, period_tokens=10)
    chunk = Chunk(kind=ChunkKind.STEP, observation="seen", thought="known", action="done")
    base = step(1).logged
    made = SizedStep.of(type(base)(**{**_fields(base), "chunk": chunk}))
    assert made.text == "Thought: known\nAction: done\nObservation: seen"
    assert made.tokens == 12
    assert due(spec, "", [made]) == 1


def _fields(base: Any) -> dict[str, Any]:
    return {name: getattr(base, name) for name in base.__slots__}


# Idle sessions


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        ((0, 3599, 7198), None),
        ((0, 3600, 3601), 1),
        ((0, 1, 3600.999), None),
        ((0, 1, 3601), 2),
        ((0, 1, 9000, 99000), 2),
        # A clock that is set back is no gap.
        ((0, -9000, -8999), None),
    ],
)
def test_a_gap_in_the_log_ends_a_period(seconds: Sequence[float], expected: int | None) -> None:
    spec = StateSpec(period=10, idle_ms=HOUR_MS)
    assert due(spec, "", at_seconds(*seconds)) == expected
    assert due(TEN, "", at_seconds(*seconds)) is None, "not without idle_ms"


@pytest.mark.parametrize(
    ("now", "expected"), [(3601.999, None), (3602, 3), (99999, 3), (-99999, None)]
)
def test_a_session_that_is_idle_now(now: float, expected: int | None) -> None:
    spec = StateSpec(period=10, idle_ms=HOUR_MS)
    recent = at_seconds(0, 1, 2)
    moment = START + timedelta(seconds=now)
    assert due(spec, "", recent, now=moment) == expected
    assert due(spec, "", [], now=moment) is None
    assert due(TEN, "", recent, now=moment) is None


def test_workers_that_saw_the_session_idle_and_that_read_the_log_later_agree() -> None:
    spec = StateSpec(period=10, idle_ms=HOUR_MS)
    recent = at_seconds(0, 1, 2)
    seen = due(spec, "", recent, now=START + timedelta(hours=2))
    later = due(spec, "", [*recent, step(4, seconds=7201)])
    assert seen == later == 3


def test_a_full_period_does_not_wait_for_the_gap_after_it() -> None:
    spec = StateSpec(period=2, idle_ms=HOUR_MS)
    assert due(spec, "", at_seconds(0, 1, 9000)) == 2
    assert due(spec, "", at_seconds(0, 9000, 9001)) == 1


# Flushes


@pytest.mark.parametrize(
    ("flush", "count", "expected"),
    [
        (0, 5, None),
        # After 100, which is compressed.
        (100, 5, None),
        (101, 5, 1),
        (103, 5, 3),
        (105, 5, 5),
        (200, 5, 5),
        (103, 15, 10),
        (112, 15, 10),
        (101, 0, None),
    ],
)
def test_a_flush_in_the_middle_of_a_period(flush: int, count: int, expected: int | None) -> None:
    recent = steps(["text"] * count, 101)
    assert due(TEN, "", recent, flush_position=flush) == expected


def test_a_flush_is_over_when_what_it_asked_for_is_compressed() -> None:
    recent = steps(["text"] * 15, 101)
    sizes = []
    while taken := due(TEN, "", recent, flush_position=112):
        sizes.append(taken)
        recent = recent[taken:]
    assert sizes == [10, 2]
    assert [one.position for one in recent] == [113, 114, 115]


# Adaptive periods


def new_words(count: int, begin: int = 0) -> str:
    return " ".join(f"w{number:04}" for number in range(begin, begin + count))


def test_an_adaptive_memory_waits_for_four_periods_where_nothing_is_new() -> None:
    old = steps(["the same words again"] * 100)
    assert due(ADAPTIVE, "the same words again", old) == ADAPTIVE_SPAN * 10
    assert due(ADAPTIVE, "The Same WORDS, again!", old) == ADAPTIVE_SPAN * 10
    assert due(ADAPTIVE, "the same words again", old[:39]) is None


def test_an_adaptive_memory_takes_a_quarter_where_all_is_new() -> None:
    new = steps(new_words(200, 200 * number) for number in range(10))
    assert due(ADAPTIVE, "", new) == 3, "a quarter of 10, rounded up"
    assert due(ADAPTIVE, "", new[:2]) is None
    assert due(StateSpec(period=1, period_kind=Period.ADAPTIVE), "", new[:1]) is None
    small = StateSpec(period=1, period_kind=Period.ADAPTIVE, state_tokens=32)
    assert due(small, "", new[:1]) == 1


def test_an_adaptive_memory_goes_by_what_is_new() -> None:
    # 16 tokens each, all new: two vectors of 32 tokens are 64.
    new = steps(new_words(11, 11 * number)[:64].ljust(64) for number in range(10))
    assert all(one.tokens == 16 for one in new)
    assert due(ADAPTIVE, "", new) == NEW_VECTORS * 32 // 16
    half_known = " ".join(one.text for one in new[::2])
    assert due(ADAPTIVE, half_known, new) == 8


def test_tokens_are_enough_for_an_adaptive_memory_too() -> None:
    spec = StateSpec(period=10, period_kind=Period.ADAPTIVE, period_tokens=10)
    assert due(spec, "", steps(["abcd" * 5] * 5)) == 2


WORDS = ["ab", "bc", "cd", "de", "ef", "fg", "gh", "hi"]
TEXTS = st.lists(
    st.lists(st.sampled_from(["ab", "bc", "cd", "de", "ef", "fg", "gh", "hi"]), max_size=40).map(
        " ".join
    ),
    max_size=40,
)
SPECS = st.builds(
    StateSpec,
    period=st.integers(1, 12),
    period_kind=st.sampled_from(Period),
    period_tokens=st.sampled_from([0, 20, 60]),
    idle_ms=st.sampled_from([0, 5000]),
    state_tokens=st.sampled_from([32, 64]),
)


@given(spec=SPECS, texts=TEXTS, known=st.sampled_from(["", "ab bc", "cd de ef fg"]), data=st.data())
def test_the_border_does_not_depend_on_how_much_of_the_log_is_there(
    spec: StateSpec, texts: list[str], known: str, data: st.DataObject
) -> None:
    gaps = data.draw(st.lists(st.integers(0, 7), min_size=len(texts), max_size=len(texts)))
    recent = [
        step(number, text, seconds=sum(gaps[:number])) for number, text in enumerate(texts, 1)
    ]
    taken = due(spec, known, recent)
    if taken is None:
        assert all(due(spec, known, recent[:size]) is None for size in range(len(recent)))
        assert len(recent) < spec.max_period
        return
    assert 1 <= taken <= spec.max_period
    # An idle gap is only seen with the step after it.
    assert all(due(spec, known, recent[:size]) is None for size in range(taken))
    assert due(spec, known, recent[:taken]) in (taken, None)
    sizes = range(taken + 1, len(recent) + 1)
    assert all(due(spec, known, recent[:size]) == taken for size in sizes)


@given(texts=TEXTS, known=st.lists(st.sampled_from(WORDS)), period=st.integers(1, 9))
def test_an_adaptive_period_keeps_its_bounds_and_is_never_shorter_for_knowing_more(
    texts: list[str], known: list[str], period: int
) -> None:
    spec = StateSpec(period=period, period_kind=Period.ADAPTIVE, state_tokens=32)
    recent = steps(texts)
    less = due(spec, "", recent)
    more = due(spec, " ".join(known), recent)
    for taken in (less, more):
        assert taken is None or -(-period // ADAPTIVE_SPAN) <= taken <= ADAPTIVE_SPAN * period
    never = len(texts) + 1
    assert (less or never) <= (more or never)


@given(texts=TEXTS, period=st.integers(1, 9), at=st.integers(0, 39))
def test_an_adaptive_period_is_never_longer_for_hearing_more_that_is_new(
    texts: list[str], period: int, at: int
) -> None:
    spec = StateSpec(period=period, period_kind=Period.ADAPTIVE, state_tokens=32)
    never = len(texts) + 1
    longer = list(texts)
    if at < len(texts):
        longer[at] = f"{texts[at]} {new_words(30)}"
    # Not for any words: with more old ones a step has a smaller share of new ones.
    assert (due(spec, "", steps(longer)) or never) <= (due(spec, "", steps(texts)) or never)


@given(spec=SPECS, texts=TEXTS, known=st.sampled_from(["", "ab bc"]))
def test_nothing_is_due_before_the_least_that_can_be(
    spec: StateSpec, texts: list[str], known: str
) -> None:
    taken = due(spec, known, steps(texts))
    assert taken is None or taken >= least_due(spec)


@pytest.mark.parametrize(
    ("spec", "least"),
    [
        (TEN, 10),
        (ADAPTIVE, 3),
        (StateSpec(period=1), 1),
        (StateSpec(period=10, period_tokens=50), 1),
    ],
)
def test_the_least_that_can_be_due(spec: StateSpec, least: int) -> None:
    assert least_due(spec) == least
    new = steps(new_words(300, 300 * number) for number in range(10))
    assert due(spec, "", new) == least
