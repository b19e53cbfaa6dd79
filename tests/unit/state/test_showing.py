"""Working contexts as agents read them: whole where they fit, never past the window."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.domain.log.chunks import Chunk, ChunkKind
from service.domain.prompting.tokens import estimate_tokens
from service.domain.state.showing import CONTEXT_SHARE, shown, without_middle
from service.domain.state.spec import StateSpec
from service.domain.state.triggers import SizedStep
from service.domain.state.working_context import WorkingContext, as_messages, as_text
from tests.unit.state.contexts import context, vector

STACK = (vector(1, "Ann left.", end=10),)
WINDOW = 32_000


def seen(held: WorkingContext, *, window: int = WINDOW, tokens: int = 0) -> WorkingContext:
    spec = StateSpec(period_tokens=tokens)
    found = shown(held, spec, window_tokens=window, count=estimate_tokens)
    assert found is not None
    return found


def test_what_fits_is_shown_as_it_is() -> None:
    held = context(STACK, ["It rained.", "word " * 3000])
    for tokens in (0, 4000):
        found = seen(held, tokens=tokens)
        assert list(found.recent) == list(held.recent)
        assert as_text(found) == as_text(held)


@pytest.mark.parametrize("tokens", [0, 4000])
def test_a_step_that_is_larger_than_the_window_is_cut_in_its_middle(tokens: int) -> None:
    long = "begins " + "word " * 31_200 + "ends"
    held = context(STACK, ["It rained.", long, "It stopped."])
    assert estimate_tokens(as_text(held)) > 39_000
    text = as_text(seen(held, tokens=tokens))
    assert estimate_tokens(text) <= (4100 if tokens else WINDOW * CONTEXT_SHARE)
    for part in ("Ann left.", "It rained.", "begins word", "word ends", "It stopped."):
        assert part in text
    assert "characters left out …]" in text


def test_the_longest_part_of_a_step_is_cut_in_messages_too() -> None:
    held = context(STACK, ["x"])
    chunk = Chunk(
        kind=ChunkKind.STEP, observation="seen " * 40_000, thought="I think.", action="go()"
    )
    one = SizedStep.of(replace(held.recent[0].logged, chunk=chunk))
    found = seen(replace(held, recent=(one,)), tokens=4000)
    said = [message.content for message in as_messages(found)]
    assert any("I think." in one and "go()" in one for one in said)
    assert sum(map(estimate_tokens, said)) <= 4100


def test_many_steps_together_are_cut_to_equal_shares() -> None:
    held = context(STACK, ["word " * 8000 for _ in range(9)] + ["short"])
    text = as_text(seen(held))
    assert estimate_tokens(text) <= WINDOW * CONTEXT_SHARE
    assert text.count("left out") == 9
    assert "short" in text


def test_what_fits_in_no_way_is_reported() -> None:
    held = context((vector(1, "word " * 8000, end=10),), ["a step " * 90] * 5)
    assert shown(held, StateSpec(), window_tokens=10_000, count=estimate_tokens) is None


@given(
    sizes=st.lists(st.integers(0, 9000), max_size=12),
    window=st.integers(1000, 9000),
    tokens=st.sampled_from([0, 200, 4000]),
)
def test_no_context_passes_the_window(sizes: list[int], window: int, tokens: int) -> None:
    held = context(STACK, ["ab " * size + "." for size in sizes])
    spec = StateSpec(period_tokens=tokens)
    found = shown(held, spec, window_tokens=window, count=estimate_tokens)
    assert found is not None
    assert estimate_tokens(as_text(found)) <= window
    assert [one.position for one in found.recent] == [one.position for one in held.recent]


@given(text=st.text(max_size=400), tokens=st.integers(0, 90))
def test_without_its_middle_a_text_has_its_beginning_and_its_end(text: str, tokens: int) -> None:
    found = without_middle(text, tokens, estimate_tokens)
    if estimate_tokens(text) <= tokens:
        assert found == text
        return
    head, _, tail = found.partition(" [… ")
    assert text.startswith(head)
    assert text.endswith(tail.partition(" …] ")[2])
