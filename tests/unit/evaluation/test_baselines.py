"""Baselines: the parts of a text that each reads, and that no prompt exceeds the window."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluation.baselines.prompts import read_answer
from evaluation.baselines.reading import (
    CARRIED_TOKENS,
    LEAST_WINDOW_TOKENS,
    Baseline,
    Carried,
    Found,
    NoRoom,
    Window,
    carry,
    read_carried,
    read_full,
    read_retrieved,
)
from evaluation.baselines.texts import Text, beginning, ending
from service.domain.prompting.asking import NoUse
from service.domain.prompting.ends import End
from service.domain.prompting.flows import Flow, ModelReply, ModelRequest
from service.domain.prompting.tokens import estimate_prompt_tokens, estimate_tokens
from service.domain.search.ranking import ranked
from tests.support.contents import CarryContent, ReadContent, content_of

QUERY = "Who fed the fox?"


def window(tokens: int = 4096) -> Window:
    return Window(tokens=tokens, count=estimate_tokens, marker_key=b"key")


def chunks(count: int, special: dict[int, str] | None = None) -> list[str]:
    """About 100 tokens each."""
    made = [f"Chunk {n}. " + "The grey sea rolled on and on. " * 13 for n in range(1, count + 1)]
    for position, text in (special or {}).items():
        made[position - 1] = text
    return made


def asked_of(flow: Flow[Found], reply: str = "Ann") -> tuple[Found, ModelRequest, ReadContent]:
    (ask,) = next(flow)
    with pytest.raises(StopIteration) as end:
        flow.send([ModelReply(text=reply, model="m")])
    assert isinstance(content_of(ask), ReadContent)
    return end.value.value, ask, content_of(ask)


def size(ask: ModelRequest) -> int:
    return sum(estimate_prompt_tokens(one.text) for one in ask.segments) + ask.max_output_tokens


def carried(text: Text, tell: Callable[[CarryContent], str], within: Window) -> Carried:
    flow = carry(text, within)
    try:
        asks = next(flow)
        while True:
            assert size(asks[0]) <= within.tokens
            assert isinstance(content_of(asks[0]), CarryContent)
            asks = flow.send([ModelReply(text=tell(content_of(asks[0])), model="m")])
    except StopIteration as end:
        found: Carried = end.value
        return found


def test_full_context_keeps_one_end() -> None:
    text = Text(chunks(100))
    left, _, kept = asked_of(read_full(Baseline.FULL_LEFT, text, QUERY, (), window()))
    assert kept.texts[0].startswith("Chunk 1.")
    assert left.positions == frozenset(range(1, max(left.positions) + 1))
    assert 30 <= len(left.positions) <= 40
    right, _, kept = asked_of(read_full(Baseline.FULL_RIGHT, text, QUERY, (), window()))
    assert kept.texts[0].endswith("on and on. ")
    assert max(right.positions) == 100
    assert len(right.positions) == pytest.approx(len(left.positions), abs=1)


def test_a_short_text_is_read_whole_from_either_end() -> None:
    text = Text(["One.", "Two."])
    for baseline in (Baseline.FULL_LEFT, Baseline.FULL_RIGHT):
        found, _, content = asked_of(read_full(baseline, text, QUERY, (), window()))
        assert content.texts == ("One.\nTwo.",)
        assert found.positions == {1, 2}


def test_retrieval_reads_what_fits_the_question_in_the_order_of_the_text() -> None:
    text = Text(chunks(100, {15: "Ann fed the fox. " * 20, 85: "The fox slept. " * 20}))
    found, _, content = asked_of(read_retrieved(text, QUERY, (), window()))
    assert {15, 85} <= found.positions
    assert len(content.texts) == 4
    places = [text.whole.index(one) for one in content.texts]
    assert places == sorted(places)


def test_recurrence_carries_a_summary_to_the_last_part() -> None:
    text = Text(chunks(100))
    contents: list[CarryContent] = []

    def tell(content: CarryContent) -> str:
        contents.append(content)
        return f"<think>So.</think>\nsummary {len(contents)} " + "and more " * 1000

    found = carried(text, tell, window())
    assert contents[0].carried == ""
    assert contents[1].carried.startswith("summary 1 ")
    assert estimate_tokens(contents[1].carried) <= CARRIED_TOKENS, "too much is cut"
    read = "".join(content.text for content in contents) + found.last
    assert read == text.whole, "every part is read, once"
    assert found.summary.startswith(f"summary {len(contents)} ")
    answered, ask, content = asked_of(read_carried(found, QUERY, (), window()))
    assert content.texts == (found.summary, found.last)
    assert answered.positions == found.positions
    assert size(ask) <= 4096


def test_a_text_of_one_part_needs_no_summary() -> None:
    found = carried(Text(["One.", "Two."]), lambda _: pytest.fail("nothing to carry"), window())
    assert (found.summary, found.last) == ("", "One.\nTwo.")


@given(
    st.lists(st.text(max_size=400), max_size=60),
    st.text(min_size=1, max_size=600),
    st.lists(st.text(min_size=1, max_size=60), max_size=4),
    st.integers(LEAST_WINDOW_TOKENS, 4000),
)
def test_no_prompt_passes_the_window(
    texts: list[str], query: str, options: list[str], tokens: int
) -> None:
    text, within = Text(texts), window(tokens)
    flows: list[Callable[[], Flow[Found]]] = [
        lambda: read_full(Baseline.FULL_LEFT, text, query, options, within),
        lambda: read_full(Baseline.FULL_RIGHT, text, query, options, within),
        lambda: read_retrieved(text, query, options, within),
        lambda: read_carried(carried(text, lambda one: one.text, within), query, options, within),
    ]
    for flow in flows:
        try:
            found, ask, _ = asked_of(flow())
        except NoRoom:
            assert estimate_tokens(query + "".join(options)) > 250
            continue
        assert size(ask) <= tokens
        assert found.positions <= set(range(1, len(texts) + 1))


@given(st.text(alphabet="ab \né", max_size=300), st.integers(1, 60))
def test_both_ends_of_a_text_keep_to_the_tokens(text: str, tokens: int) -> None:
    first, last = (take(text, tokens, estimate_tokens) for take in (beginning, ending))
    assert text.startswith(first.text)
    assert text[last.start :] == last.text
    for part in (first, last):
        assert estimate_tokens(part.text) <= tokens
    if estimate_tokens(text) <= tokens:
        assert first.text == last.text == text


@given(st.lists(st.text(alphabet="ab", max_size=5), min_size=1, max_size=8), st.data())
def test_positions_are_those_of_the_characters(texts: list[str], data: st.DataObject) -> None:
    text = Text(texts)
    start = data.draw(st.integers(0, len(text.whole)))
    end = data.draw(st.integers(start, len(text.whole)))
    at, expected = 0, set()
    for position, one in enumerate(texts, start=1):
        # The line feed after a chunk counts as its own.
        if start < end and at < end and start < at + len(one) + 1:
            expected.add(position)
        at += len(one) + 1
    assert text.positions(start, end) == expected


def test_rare_words_rank_a_text() -> None:
    texts = ["the sea the sea", "the sea and a fox", "the the the"]
    assert ranked("the fox", texts) == [1, 2, 0]
    assert ranked("nothing", texts) == [0, 1, 2]
    assert ranked("a", []) == []


@pytest.mark.parametrize(
    ("reply", "options", "expected"),
    [
        (" Ann. ", (), "Ann."),
        ("Answer: Ann", (), "Ann"),
        ("She says so.\n**Answer:** Ann fed it", (), "Ann fed it"),
        ("No answer.", (), ""),
        ("", (), ""),
        ("<think>Answer: Ben? No.</think>\nAnn", (), "Ann"),
        ("<think>It may be Ann, or", (), ""),
        ("(B) a red fox", ("a fox", "a red fox"), "a red fox"),
        ("B", ("a fox", "a red fox"), "a red fox"),
        ("It was a red fox, I think", ("a fox", "a red fox"), "a red fox"),
        ("a red fox, not a hen", ("a hen", "a red fox"), ""),
        ("A fox did it", ("a fox", "a red fox"), "a fox"),
        ("C", ("a fox", "a red fox"), ""),
        ("no answer", ("a fox", "a red fox"), ""),
    ],
)
def test_answers_are_read_and_never_guessed(
    reply: str, options: tuple[str, ...], expected: str
) -> None:
    assert read_answer(reply, options) == expected


def test_a_question_that_fills_the_window_is_refused() -> None:
    with pytest.raises(NoRoom, match="a window of 2048 tokens has no room"):
        next(read_full(Baseline.FULL_LEFT, Text(["One."]), "why " * 2000, (), window(2048)))


@pytest.mark.parametrize("end", End)
def test_only_a_reply_of_use_is_an_answer(end: End) -> None:
    flow = read_full(Baseline.FULL_LEFT, Text(chunks(1)), QUERY, (), window())
    next(flow)
    with pytest.raises(StopIteration) as done:
        flow.send([ModelReply(text="Ann", model="m", end=end)])
    assert done.value.value.text == ("Ann" if end in (End.COMPLETE, End.LENGTH) else "")


@pytest.mark.parametrize(
    ("text", "end", "why"),
    [
        ("", End.REFUSAL, "refused the text"),
        ("Ann", End.FILTER, "filter refused the text"),
        ("Ann", End.UNKNOWN, "broken off"),
        ("", End.COMPLETE, "empty"),
        ("<think>Ann", End.COMPLETE, "all of it was thinking"),
    ],
)
def test_what_was_read_is_not_lost_with_a_summary(text: str, end: End, why: str) -> None:
    flow = carry(Text(chunks(60)), window())
    next(flow)
    with pytest.raises(NoUse, match=why):
        flow.send([ModelReply(text=text, model="m", end=end)])
