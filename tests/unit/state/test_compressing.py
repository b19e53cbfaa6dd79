"""State vectors: the prompt, and the handling of real replies."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.domain.prompting.asking import FAULTS, MAX_TRIES, NoUse
from service.domain.prompting.ends import End
from service.domain.prompting.fitting import prompt_tokens
from service.domain.prompting.flows import ModelReply, ModelRequest, Purpose, Segment, SegmentKind
from service.domain.prompting.marking import marked
from service.domain.prompting.tokens import estimate_tokens
from service.domain.state.compressing import (
    MAX_SHORTENINGS,
    Compression,
    CompressionTooLarge,
    compress_steps,
    compress_vectors,
    stand_in,
)
from service.domain.state.spec import StateSpec
from service.domain.state.triggers import SizedStep
from service.domain.state.vectors import VectorSource
from service.domain.values.reasons import Reason
from service.llm.splitter import first_piece
from tests.support.contents import CompressStepsContent, CompressVectorsContent, content_of
from tests.unit.state.making import KEY, answered, run, steps, vector

WINDOW = 16_000
SPEC = StateSpec(task="Find the wolf.", state_tokens=32)
TOO_LONG = "The wolf is grey. " * 20


def around(**changes: Any) -> dict[str, Any]:
    given = {
        "spec": SPEC,
        "marker_key": KEY,
        "count": estimate_tokens,
        "window_tokens": WINDOW,
        "cut": first_piece,
    }
    return given | changes


def ended(text: str, end: End, said: str = "") -> ModelReply:
    return ModelReply(text=text, model="m", end=end, said=said)


def compressed(
    *replies: str | ModelReply, current: str = "It is grey.", **changes: Any
) -> tuple[Compression, list[ModelRequest]]:
    """Compresses two steps after a vector."""
    flow = compress_steps(current, steps(["I saw it.", "I ran."], 11), **around(**changes))
    return run(flow, *replies)


def test_the_vector_and_the_steps_are_asked_for_after_what_all_calls_share() -> None:
    spec = StateSpec(state_tokens=40, pinned=("wolf 7", 'a "b"\nc'))
    made, (ask,) = compressed('The wolf 7 is grey, a "b"\nc.', spec=spec)
    assert made == Compression(
        text='The wolf 7 is grey, a "b"\nc.',
        tokens=7,
        made=VectorSource.MODEL,
        replies=1,
        appended=(),
    )
    assert (ask.purpose, ask.template, ask.attempt) == (Purpose.COMPRESS, "state.compress/2", 0)
    task, base, chunk = ask.segments
    assert "At most 40 tokens; in English these are about 30 words." in task.text
    assert task.text.endswith("[PINNED]\n" + marked("wolf 7", KEY) + marked('a "b"\nc', KEY)), (
        "pinned strings are data, too"
    )
    assert base.text == "[STATE]\n" + marked("It is grey.", KEY)
    assert chunk.text == (
        f"[STEPS]\nStep 11:\n{marked('I saw it.', KEY)}Step 12:\n{marked('I ran.', KEY)}"
    )
    assert content_of(ask) == CompressStepsContent(
        current="It is grey.",
        current_is_task=False,
        steps=((11, "I saw it."), (12, "I ran.")),
        pinned=spec.pinned,
        max_tokens=40,
    )
    assert ask.max_output_tokens > 2 * spec.state_tokens


def test_the_prompt_asks_for_what_the_paper_says() -> None:
    _, (ask,) = compressed("Grey.")
    for part in ("one dense paragraph", "goal of the whole task", "progress", "sub-goals"):
        assert part in ask.segments[0].text
    assert "constraints" in ask.segments[0].text
    assert "[PINNED]\n<<<" not in ask.text


def test_the_first_vector_is_the_task_prompt() -> None:
    _, (ask,) = compressed("Grey.", current=SPEC.task)
    assert ask.segments[1].text == "[TASK]\n" + marked(SPEC.task, KEY)
    assert steps_of(ask).current_is_task


def test_without_a_task_prompt_the_steps_stand_alone() -> None:
    _, (ask,) = compressed("Grey.", current="", spec=StateSpec())
    assert [one.kind for one in ask.segments] == [SegmentKind.TASK, SegmentKind.CHUNK]


def test_vectors_are_compressed_after_the_one_above_them() -> None:
    run_of = [vector(4, "It was red.", begin=0, end=10), vector(5, "It is grey.", begin=10, end=20)]
    made, (ask,) = run(compress_vectors("A wolf.", run_of, **around()), "The wolf is grey.")
    assert made.text == "The wolf is grey."
    assert (ask.purpose, ask.template) == (Purpose.COMPRESS, "state.episode/2")
    assert ask.segments[1].text == "[EARLIER]\n" + marked("A wolf.", KEY)
    assert ask.segments[2].text == (
        f"[STATES]\nSteps 1 to 10:\n{marked('It was red.', KEY)}"
        f"Steps 11 to 20:\n{marked('It is grey.', KEY)}"
    )
    assert content_of(ask) == CompressVectorsContent(
        above="A wolf.", vectors=("It was red.", "It is grey."), pinned=(), max_tokens=32
    )
    _, (alone,) = run(compress_vectors("", run_of, **around()), "The wolf is grey.")
    assert [one.kind for one in alone.segments] == [SegmentKind.TASK, SegmentKind.CHUNK]


@pytest.mark.parametrize(
    ("reply", "text", "made"),
    [
        ("  The wolf.\n", "The wolf.", VectorSource.MODEL),
        ("<think>Which?</think>\nThe wolf.", "The wolf.", VectorSource.MODEL),
        ("Memory State Vector: The wolf.", "The wolf.", VectorSource.MODEL),
        ("**Memory State Vector (M_2):** The wolf.", "The wolf.", VectorSource.MODEL),
        ("## New state\n\nThe wolf.", "The wolf.", VectorSource.MODEL),
        ("[STATE]\nThe wolf.", "The wolf.", VectorSource.MODEL),
        ("the updated paragraph: The wolf.", "The wolf.", VectorSource.MODEL),
        ("State:", "State:", VectorSource.MODEL),
        ("The state: grey.", "grey.", VectorSource.MODEL),
        ("Stately: the wolf.", "Stately: the wolf.", VectorSource.MODEL),
        (
            "The wolf.\n\n- It is grey.\r\n- It\u2028runs.",
            "The wolf. - It is grey. - It runs.",
            VectorSource.MODEL,
        ),
        ("The\0wolf.", "The wolf.", VectorSource.MODEL),
    ],
)
def test_what_models_write_around_a_paragraph_is_left_out(
    reply: str, text: str, made: VectorSource
) -> None:
    result, _ = compressed(reply)
    assert (result.text, result.made) == (text, made)
    assert result.tokens == estimate_tokens(text)


@pytest.mark.parametrize("empty", ["", " \n", "\0", "<think>Hm", "<think>Hm.</think>\n"])
def test_an_empty_reply_is_asked_again(empty: str) -> None:
    made, asks = compressed(empty, empty, "Grey.")
    assert (made.text, made.replies) == ("Grey.", 3)
    assert all(ask.text.startswith(asks[0].text) for ask in asks)
    assert all("it had no paragraph" in ask.text for ask in asks[1:])
    assert len({(ask.text, ask.attempt) for ask in asks}) == 3


@pytest.mark.parametrize("end", [End.THINKING, End.EMPTY, End.TOOL_CALL, End.UNKNOWN, End.LENGTH])
def test_a_reply_that_says_nothing_is_asked_for_again_with_the_reason(end: End) -> None:
    made, (first, again) = compressed(ended("", end), "Grey.", window_tokens=32_000)
    assert (made.text, made.made) == ("Grey.", VectorSource.MODEL)
    assert FAULTS[end] in again.text
    grows = end in (End.THINKING, End.LENGTH)
    assert again.max_output_tokens == first.max_output_tokens * (2 if grows else 1)


@pytest.mark.parametrize("end", [End.REFUSAL, End.FILTER])
def test_a_refusal_ends_it_at_once_with_its_words(end: End) -> None:
    with pytest.raises(NoUse, match="refused the text: not that") as refusal:
        compressed(ended("", end, "not that"))
    assert (refusal.value.retryable, refusal.value.end) == (False, end)


def test_the_third_empty_reply_in_a_row_is_the_last() -> None:
    with pytest.raises(NoUse, match="no state vector in 3 replies") as refusal:
        compressed(*[""] * MAX_TRIES)
    assert refusal.value.retryable is False


def test_a_reply_that_is_too_long_is_asked_for_again_with_its_length() -> None:
    made, (first, second) = compressed(TOO_LONG, "The wolf is grey.")
    assert (made.text, made.made, made.replies) == ("The wolf is grey.", VectorSource.MODEL, 2)
    assert second.segments[:3] == first.segments
    again = second.segments[3]
    assert again.kind is SegmentKind.QUERY
    assert f"has {estimate_tokens(TOO_LONG.strip())} tokens or more; 32 is" in again.text
    assert again.text.endswith(marked(TOO_LONG.strip(), KEY))
    assert steps_of(second).too_long == TOO_LONG.strip()


def test_a_reply_that_stays_too_long_is_cut_at_a_sentence() -> None:
    made, asks = compressed(TOO_LONG, TOO_LONG, "It runs off. " + TOO_LONG)
    assert made.text == "It runs off." + " The wolf is grey." * 6 + " …"
    assert (made.made, made.replies, len(asks)) == (VectorSource.CUT, 3, MAX_SHORTENINGS + 1)
    assert [ask.attempt for ask in asks] == [0, 0, 0]
    assert len({ask.text for ask in asks}) == 3, "the same words bring the same reply"


def test_empty_replies_count_anew_after_one_that_was_too_long() -> None:
    made, asks = compressed("", "", TOO_LONG, "", "", "Grey.")
    assert (made.text, made.replies) == ("Grey.", 6)
    keys = [(ask.text, ask.attempt) for ask in asks]
    assert len(set(keys)) == len(keys), "a ledger would give the same reply again"


def test_what_was_too_long_is_better_than_nothing() -> None:
    made, _ = compressed(TOO_LONG, *[""] * MAX_TRIES)
    assert (made.made, made.replies) == (VectorSource.CUT, 4)
    assert made.text.startswith("The wolf is grey.")


def test_a_reply_that_did_not_end_is_asked_for_again_and_then_ends_at_a_sentence() -> None:
    cut = ended("The wolf is grey. It ru", End.LENGTH)
    made, asks = compressed(cut, "Grey.", window_tokens=32_000)
    assert (made.text, made.made, len(asks)) == ("Grey.", VectorSource.MODEL, 2)
    assert "[CUT OFF]" in asks[1].text
    assert asks[1].max_output_tokens == 2 * asks[0].max_output_tokens
    made, _ = compressed(cut, cut, cut)
    assert (made.text, made.made) == ("The wolf is grey. …", VectorSource.CUT)


def test_the_first_prompt_is_left_out_where_it_has_no_room_beside_the_reply() -> None:
    def asked(window: int) -> Sequence[ModelRequest]:
        return compressed(TOO_LONG, "Grey.", window_tokens=window)[1]

    assert len(asked(WINDOW)[1].segments) == 4
    window = next(size for size in range(1500, 0, -1) if len(asked(size)[1].segments) != 4)
    first, second = asked(window)
    assert [one.kind for one in second.segments] == [SegmentKind.TASK, SegmentKind.QUERY]
    assert second.segments[0] == first.segments[0]
    assert fits(second, window, estimate_tokens)


# Pinned strings


def test_a_dropped_string_is_put_after_the_text() -> None:
    spec = StateSpec(state_tokens=32, pinned=("at 5 pm", "no\nbells", '"x"; y', "grey"))
    made, _ = compressed("It is grey.", spec=spec)
    assert made.text == 'It is grey. Pinned: at 5 pm; no\nbells; "x"; y'
    assert (made.made, made.appended) == (VectorSource.MODEL, ("at 5 pm", "no\nbells", '"x"; y'))
    assert made.tokens == estimate_tokens(made.text)


def test_the_text_makes_room_for_a_dropped_string() -> None:
    spec = StateSpec(state_tokens=32, pinned=("at 5 pm sharp, behind the mill of Halvor",))
    said = "The wolf is grey. It runs in the wood at night. I have seen it near the old red mill."
    made, asks = compressed(said, spec=spec)
    assert made.text.startswith("The wolf is grey. It runs in the wood at night. … Pinned: at 5 pm")
    assert (made.made, made.appended, len(asks)) == (VectorSource.CUT, spec.pinned, 1)


def test_a_string_that_a_cut_takes_away_is_put_after() -> None:
    spec = StateSpec(state_tokens=32, pinned=("the very last",))
    made, _ = compressed(*[TOO_LONG + "It is the very last."] * 3, spec=spec)
    assert made.text.endswith("… Pinned: the very last")
    assert made.appended == ("the very last",)


def test_pinned_strings_that_pass_the_limit_by_the_model_s_count_are_refused_unasked() -> None:
    spec = StateSpec(state_tokens=32, pinned=("x" * 64,))
    flow = compress_steps("", steps(["a"]), **around(spec=spec, count=len))
    with pytest.raises(CompressionTooLarge, match="the pinned strings have 72 tokens") as refusal:
        next(flow)
    assert (refusal.value.reason, refusal.value.retryable) == (Reason.MEMORY_STALLED, False)


WORDS = st.text(alphabet="ab .\n\t\u2028“é市…", min_size=1, max_size=30)
SAID = st.lists(WORDS | st.text(max_size=40), max_size=12).map("".join)
COUNTS: list[Callable[[str], int]] = [
    estimate_tokens,
    len,
    lambda text: len(text.split()),
    lambda text: (len(text) + 2) // 3,
]


@given(
    said=SAID,
    pinned=st.lists(WORDS, max_size=4),
    whole=st.booleans(),
    inside=st.booleans(),
    limit=st.integers(32, 120),
    count=st.sampled_from(COUNTS),
)
def test_a_vector_is_one_short_paragraph_with_every_pinned_string(
    said: str,
    pinned: list[str],
    whole: bool,
    inside: bool,
    limit: int,
    count: Callable[[str], int],
) -> None:
    spec = StateSpec(state_tokens=limit, pinned=tuple(pinned))
    text = said + ("".join(pinned) + said if inside else "")
    reply = ended(text, End.COMPLETE if whole else End.LENGTH)
    flow = compress_steps("", steps(["a"]), **around(spec=spec, count=count))
    try:
        made, _ = answered(flow, lambda _: reply)
    except CompressionTooLarge:
        assert count("Pinned: " + "; ".join(pinned)) > limit
        return
    except NoUse:
        assert not said.replace("\0", "").strip() or "think" in said
        return
    check(made, spec, count)


@given(
    current=SAID,
    texts=st.lists(SAID, max_size=3),
    pinned=st.lists(WORDS, max_size=3),
    limit=st.integers(32, 120),
    count=st.sampled_from(COUNTS),
)
def test_a_stand_in_keeps_to_the_same(
    current: str,
    texts: list[str],
    pinned: list[str],
    limit: int,
    count: Callable[[str], int],
) -> None:
    spec = StateSpec(state_tokens=limit, pinned=tuple(pinned))
    made = stand_in(current, texts, spec=spec, count=count)
    assert (made.made, made.replies) == (VectorSource.SKIPPED, 0)
    check(made, spec, count)


def check(made: Compression, spec: StateSpec, count: Callable[[str], int]) -> None:
    assert all(one in made.text for one in spec.pinned)
    assert set(made.appended) <= set(spec.pinned)
    assert made.tokens == count(made.text)
    if count("Pinned: " + "; ".join(spec.pinned)) <= spec.state_tokens:
        assert made.tokens <= spec.state_tokens
    assert "\0" not in made.text
    rest = made.text
    for one in sorted(spec.pinned, key=len, reverse=True):
        rest = rest.replace(one, "")
    if not any(one != " ".join(one.split()) for one in spec.pinned):
        assert len(rest.splitlines()) <= 1


def test_a_stand_in_is_the_old_vector_and_the_beginning_of_the_steps() -> None:
    made = stand_in(
        "It is grey.", ["I saw it.\nI ran.", "It bit."], spec=SPEC, count=estimate_tokens
    )
    assert made.text == "It is grey. I saw it. I ran. It bit."
    long = stand_in(TOO_LONG, ["I saw it. " + "I ran. " * 90], spec=SPEC, count=estimate_tokens)
    assert long.text.startswith("The wolf is grey.")
    assert "I saw it. I ran." in long.text
    assert long.tokens <= SPEC.state_tokens


# What does not fit


def steps_of(ask: ModelRequest) -> CompressStepsContent:
    content = content_of(ask)
    assert isinstance(content, CompressStepsContent)
    return content


def vectors_of(ask: ModelRequest) -> CompressVectorsContent:
    content = content_of(ask)
    assert isinstance(content, CompressVectorsContent)
    return content


def read(asks: Sequence[ModelRequest]) -> list[tuple[int, str]]:
    """Returns what was read of each step, by position; pieces of a step put together."""
    found: list[tuple[int, str]] = []
    for ask in asks:
        for position, text in steps_of(ask).steps:
            if found and found[-1][0] == position:
                found[-1] = (position, found[-1][1] + text)
            else:
                found.append((position, text))
    return found


def fits(ask: ModelRequest, window: int, count: Callable[[str], int]) -> bool:
    return prompt_tokens(ask.segments, count) + ask.max_output_tokens <= window


def test_steps_that_do_not_fit_are_compressed_part_by_part() -> None:
    texts = [f"Step {number} says {'much ' * 200}." for number in range(10)]
    window = 2400
    numbers = iter(range(1, 100))
    flow = compress_steps(SPEC.task, steps(texts), **around(window_tokens=window))
    made, asks = answered(flow, lambda _: f"State {next(numbers)}.")
    assert len(asks) > 2
    assert all(fits(ask, window, estimate_tokens) for ask in asks)
    assert read(asks) == list(enumerate(texts, 1))
    currents = [steps_of(ask).current for ask in asks]
    assert currents == [SPEC.task, *(f"State {number}." for number in range(1, len(asks)))]
    assert (made.text, made.replies) == (f"State {len(asks)}.", len(asks))
    positions = [position for ask in asks for position, _ in steps_of(ask).steps]
    assert positions == sorted(set(positions)), "a step that fits is kept whole"


def test_a_step_that_is_larger_than_the_window_is_read_in_pieces() -> None:
    texts = ["Short.", "A sentence of the long step. " * 1000, "Short again."]
    flow = compress_steps("", steps(texts), **around(window_tokens=2400))
    _, asks = answered(flow, lambda _: "State.")
    assert read(asks) == list(enumerate(texts, 1))
    assert all(fits(ask, 2400, estimate_tokens) for ask in asks)
    assert "Step 2, continued:\n" in asks[2].text
    assert all(steps_of(ask).steps[-1][1].rstrip().endswith(".") for ask in asks), (
        "pieces end with sentences"
    )


@pytest.mark.parametrize("count", COUNTS)
@given(
    texts=st.lists(
        st.builds(lambda text, times: text * times, st.text(max_size=30), st.integers(0, 150)),
        min_size=1,
        max_size=6,
    ),
    window=st.integers(2500, 5000),
    said=st.integers(1, 60),
)
def test_nothing_is_left_out_and_nothing_comes_twice(
    count: Callable[[str], int], texts: list[str], window: int, said: int
) -> None:
    given_steps: list[SizedStep] = steps(texts, 7)
    flow = compress_steps("", given_steps, **around(window_tokens=window, count=count))
    try:
        _, asks = answered(flow, lambda _: "a " * said)
    except CompressionTooLarge:
        # Where every letter is a token the instructions alone are larger.
        assert count is len
        return
    once = [ask for ask in asks if not steps_of(ask).too_long]
    assert read(once) == [(number, text) for number, text in enumerate(texts, 7) if text]
    assert all(fits(ask, window, count) for ask in once)


def test_vectors_that_do_not_fit_are_compressed_part_by_part() -> None:
    run_of = [
        vector(number, f"State {number} is {'long ' * 100}.", begin=number - 1, end=number)
        for number in range(1, 9)
    ]
    flow = compress_vectors("", run_of, **around(window_tokens=2400))
    made, asks = answered(flow, lambda ask: f"Behind {len(vectors_of(ask).above)}.")
    assert len(asks) > 1
    texts = [text for ask in asks for text in vectors_of(ask).vectors]
    assert texts == [one.text for one in run_of]
    assert vectors_of(asks[1]).above == "Behind 0."
    assert made.replies == len(asks)


def refused_base(task: str) -> Sequence[Segment]:
    return [Segment(kind=SegmentKind.BASE, text="[TASK]\n" + marked(task, KEY))]


def test_what_is_too_large_for_the_window_is_said() -> None:
    task = "Find the wolf. " * 500
    spec = StateSpec(task=task, state_tokens=32)
    flow = compress_steps(
        task, steps(["I ran. " * 100], 5), **around(spec=spec, window_tokens=2400)
    )
    with pytest.raises(CompressionTooLarge) as refusal:
        next(flow)
    assert refusal.value.reason is Reason.MEMORY_STALLED
    assert "2400 tokens has no room for step 5" in refusal.value.message
    task_tokens = prompt_tokens(refused_base(task), estimate_tokens)
    assert f"the task prompt has {task_tokens}, the reply may have 600;" in refusal.value.message


def test_there_must_be_something_to_compress() -> None:
    with pytest.raises(ValueError, match="nothing to compress"):
        next(compress_steps("", [], **around()))
