"""Reading whole: the prompt, the reading of replies, and the limit of the window."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.domain.answers import whole
from service.domain.answers.drafting import AnswerDraft
from service.domain.answers.trajectory import NoAnswer
from service.domain.answers.whole import (
    PositionQuote,
    answer_so_far,
    needed_tokens,
    read_answer,
)
from service.domain.prompting.asking import FAULTS, NoUse, SaidAnswer
from service.domain.prompting.ends import End
from service.domain.prompting.fitting import TextTooLong
from service.domain.prompting.flows import Flow, ModelReply, ModelRequest
from service.domain.prompting.tokens import estimate_tokens
from service.llm.offline.model import complete

CHUNKS = ((1, "Ann has a red key."), (2, "It rains."), (3, "Ben takes the red key to box 7."))
QUERY = "Where is the red key?"
TERMS: dict[str, Any] = {"marker_key": b"key", "count": estimate_tokens}


def flow_of(
    chunks: Any = CHUNKS, query: str = QUERY, window: int = 32_768
) -> Flow[AnswerDraft[PositionQuote]]:
    return whole.answer(chunks, query, window_tokens=window, **TERMS)


def cut(text: str) -> ModelReply:
    return ModelReply(text=text, model="m", end=End.LENGTH)


def run(
    flow: Flow[AnswerDraft[PositionQuote]], *replies: str | ModelReply
) -> tuple[AnswerDraft[PositionQuote], list[ModelRequest]]:
    asks: list[ModelRequest] = []
    left = list(replies)
    try:
        asks += next(flow)
        while True:
            said = left.pop(0)
            asks += flow.send([ModelReply(text=said, model="m") if isinstance(said, str) else said])
    except StopIteration as end:
        assert not left
        return end.value, asks


def test_an_answer_and_its_quotes() -> None:
    said = '[ANSWER]\nIn box 7.\n[QUOTES]\n3: "takes the red key to box 7"\n1: "a red key"\n'
    draft, (asked,) = run(flow_of(), said)
    assert (draft.text, draft.no_answer) == ("In box 7.", None)
    assert draft.sources == (
        PositionQuote(position=3, text="takes the red key to box 7"),
        PositionQuote(position=1, text="a red key"),
    )
    assert all(text in asked.text for _, text in CHUNKS)
    assert asked.text.index(CHUNKS[2][1]) < asked.text.index(QUERY)


@pytest.mark.parametrize(
    ("reply", "text", "quotes"),
    [
        ("In box 7.", "In box 7.", ()),
        ("**Answer:** In box 7.\n**Quotes:**\n- [3] “box 7”", "In box 7.", ((3, "box 7"),)),
        ("<think>[ANSWER] 1</think>\n[ANSWER]\nBox 7.", "Box 7.", ()),
        ("[ANSWER]\nBox 7.\n[QUOTES]\n3 - 'box 7'\n3 - 'box 7'", "Box 7.", ((3, "box 7"),)),
        ("[ANSWER]\nBox 7.\n[QUOTES]\nnone", "Box 7.", ()),
        ("[ANSWER]\nno answer\n[QUOTES]\n", "", ()),
        ("[ANSWER]\nThe log does not say.\n", "", ()),
    ],
)
def test_replies_as_models_write_them(reply: str, text: str, quotes: Any) -> None:
    expected = tuple(PositionQuote(position=position, text=words) for position, words in quotes)
    assert read_answer(reply) == SaidAnswer(text=text, sources=expected)


@pytest.mark.parametrize("reply", ["", "  \n", "[ANSWER]\n[QUOTES]\n", "<think>hm"])
def test_replies_without_an_answer(reply: str) -> None:
    assert read_answer(reply) is None


def test_an_empty_log_costs_nothing() -> None:
    draft, asks = run(flow_of(()))
    assert (draft.no_answer, asks) == (NoAnswer.EMPTY, [])


def test_three_replies_without_an_answer_are_the_end() -> None:
    draft, asks = run(flow_of(), "", " ", "[ANSWER]")
    assert (draft.no_answer, len(asks)) == (NoAnswer.UNREADABLE, 3)
    assert [one.attempt for one in asks] == [0, 1, 2]
    assert all(one.text.startswith(asks[0].text) for one in asks)
    assert len({one.text for one in asks}) == 3, "the same words bring the same reply"


def test_an_answer_that_was_cut_off_gets_more_room_and_then_a_mark() -> None:
    whole_reply = '[ANSWER]\nIn box 7.\n[QUOTES]\n3: "box 7"'
    draft, asks = run(flow_of(), cut("[ANSWER]\nIn bo"), whole_reply)
    assert (draft.text, len(draft.sources)) == ("In box 7.", 1)
    assert [one.max_output_tokens for one in asks] == [2048, 4096]
    draft, _ = run(flow_of(), cut("[ANSWER]\nIn bo"), cut("[ANSWER]\nIn box"))
    assert (draft.text, draft.is_cut, draft.replies[-1].end) == ("In box …", True, End.LENGTH)


def test_the_citations_before_the_cut_are_read_and_a_whole_answer_has_no_mark() -> None:
    reply = '[ANSWER]\nIn box 7.\n[QUOTES]\n3: "box 7"\n1: "a re'
    draft, _ = run(flow_of(), cut(reply), cut(reply))
    assert (draft.text, draft.is_cut) == ("In box 7.", False)
    assert draft.sources[0] == PositionQuote(position=3, text="box 7")


@pytest.mark.parametrize("end", [End.THINKING, End.EMPTY, End.TOOL_CALL, End.UNKNOWN])
def test_a_reply_that_says_nothing_is_asked_for_again(end: End) -> None:
    draft, asks = run(flow_of(), ModelReply(text="", model="m", end=end), "Box 7.")
    assert draft.text == "Box 7."
    assert FAULTS[end] in asks[1].text


@pytest.mark.parametrize("end", [End.REFUSAL, End.FILTER])
def test_a_refusal_fails_with_its_words(end: End) -> None:
    with pytest.raises(NoUse, match="not that"):
        run(flow_of(), ModelReply(text="", model="m", end=end, said="not that"))


def test_no_answer_is_a_result() -> None:
    draft, _ = run(flow_of(), "[ANSWER]\nno answer\n[QUOTES]\n")
    assert (draft.text, draft.no_answer) == ("", NoAnswer.NOT_FOUND)


def test_a_log_that_does_not_fit_is_refused_with_the_figures() -> None:
    chunks = [(n, "word " * 100) for n in range(1, 60)]
    with pytest.raises(TextTooLong, match=r"the log has \d+ tokens .* room for 2944 tokens"):
        next(flow_of(chunks, window=4096))


def test_a_log_that_grows_shares_the_beginning_of_its_prompt() -> None:
    chunks = [(n, f"Day {n}.") for n in range(1, 60)]
    (first,), (second,) = (next(flow_of(chunks[:upto])) for upto in (40, 59))
    shared = [a == b for a, b in zip(first.segments, second.segments, strict=False)]
    assert shared == [True, True, True, False, False], "the task and two blocks of sixteen"
    assert [one.reusable for one in first.segments] == [True, True, True, False, False]
    assert first.segments[2].text.count("Day ") == 16


@given(
    sizes=st.lists(st.integers(0, 400), max_size=40),
    query=st.text(min_size=1, max_size=300),
    window=st.integers(500, 6000),
)
def test_it_fits_or_is_refused(sizes: list[int], query: str, window: int) -> None:
    chunks = [(n, "ab " * size) for n, size in enumerate(sizes, 1)]
    needed = needed_tokens(chunks, query, window_tokens=window, **TERMS)
    try:
        asks = next(flow_of(chunks, query, window))
    except StopIteration:
        assert not chunks
    except TextTooLong:
        assert needed is None
    else:
        assert needed is not None
        assert estimate_tokens(asks[0].text) + asks[0].max_output_tokens <= needed <= window


def test_the_answer_is_streamed_as_it_is_written() -> None:
    reply = '[ANSWER]\nIn box 7,\nsince Ben took it.\n[QUOTES]\n3: "to box 7"\n'
    heard = [answer_so_far(reply[:length]) for length in range(len(reply) + 1)]
    assert heard[-1] == "In box 7,\nsince Ben took it."
    assert all(later.startswith(sooner) for sooner, later in pairwise(heard))
    assert "In box 7" in heard


@pytest.mark.parametrize("reply", ["[ANSWER]\nno answer\n[QUOTES]\n", "<think>[ANSWER]\nhm"])
def test_what_is_no_answer_is_not_streamed(reply: str) -> None:
    assert {answer_so_far(reply[:length]) for length in range(len(reply) + 1)} == {""}


def test_the_offline_model_quotes_what_it_answers_with() -> None:
    (asked,) = next(flow_of())
    assert read_answer(complete(asked)) == SaidAnswer(
        text="Ann has a red key. Ben takes the red key to box 7.",
        sources=(
            PositionQuote(position=1, text="Ann has a red key."),
            PositionQuote(position=3, text="Ben takes the red key to box 7."),
        ),
    )
    (asked,) = next(flow_of(query="Who built the bridge?"))
    assert read_answer(complete(asked)) == SaidAnswer(text="")
