"""Reranking: the prompt, and the reading of replies."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.domain.prompting.asking import MAX_TRIES
from service.domain.prompting.ends import End
from service.domain.prompting.flows import ModelReply, ModelRequest, Purpose
from service.domain.prompting.tokens import estimate_tokens
from service.domain.search.reranking import (
    MAX_TEXTS,
    NoOrder,
    read_order,
    rerank,
)
from service.llm.offline import model as offline
from tests.support.contents import RerankContent, content_of

KEY = b"k" * 32
TEXTS = ("the sea is wide", "a wolf runs", "a needle and a thread")


def _reply(said: str | ModelReply) -> ModelReply:
    return said if isinstance(said, ModelReply) else ModelReply(text=said, model="test/m")


def run(
    replies: Sequence[str | ModelReply],
    texts: Sequence[str] = TEXTS,
    *,
    query: str = "where is the wolf?",
    window: int = 4096,
) -> tuple[Sequence[int], list[ModelRequest]]:
    flow = rerank(
        query,
        texts,
        marker_key=KEY,
        window_tokens=window,
        count=estimate_tokens,
    )
    asks: list[ModelRequest] = []
    said = iter(replies)
    try:
        batch = next(flow)
        while True:
            asks += batch
            batch = flow.send([_reply(next(said)) for _ in batch])
    except StopIteration as end:
        return list(end.value), asks


def test_the_model_orders_the_texts() -> None:
    order, (ask,) = run(["[2] [3] [1]"])
    assert order == [1, 2, 0]
    assert ask.purpose is Purpose.RERANK
    assert content_of(ask) == RerankContent(query="where is the wolf?", texts=TEXTS)
    for text in (*TEXTS, "where is the wolf?"):
        assert f"\n{text}\n>>>data" in ask.text


def test_prompt_and_schema_ask_for_one_form() -> None:
    order, (ask,) = run(['{"order": [3, 1]}'])
    assert order == [2, 0, 1]
    assert ask.reply_schema == {
        "type": "object",
        "properties": {"order": {"type": "array", "items": {"type": "integer"}}},
        "required": ["order"],
        "additionalProperties": False,
    }
    assert '{"order": [' in ask.segments[0].text
    assert "[4]" not in ask.segments[0].text


def test_what_makes_no_sense_is_asked_again_with_its_fault_and_given_up() -> None:
    order, asks = run(["I cannot say", "[9]", "[3]"])
    assert order == [2, 0, 1]
    assert [ask.attempt for ask in asks] == [0, 1, 2]
    assert "it names no passage by its number" in asks[1].text
    with pytest.raises(NoOrder, match="no order"):
        run(["no"] * MAX_TRIES)


def test_an_order_that_was_cut_off_is_asked_for_again() -> None:
    cut = ModelReply(text='{"order": [2', model="test/m", end=End.LENGTH)
    order, (first, again) = run([cut, '{"order": [3, 1, 2]}'])
    assert order == [2, 0, 1]
    assert first.max_output_tokens < again.max_output_tokens


def test_passages_that_are_refused_have_no_order() -> None:
    refused = ModelReply(text="", model="test/m", end=End.REFUSAL, said="not this")
    with pytest.raises(NoOrder, match="refused the text: not this") as error:
        run([refused])
    # Logs have this, and not the words.
    assert error.value.end is End.REFUSAL


def test_one_text_needs_no_model() -> None:
    assert run([], TEXTS[:1]) == ([0], [])
    assert run([], ()) == ([], [])


def test_texts_that_do_not_fit_come_last() -> None:
    texts = [f"passage {number} " + "word " * 150 for number in range(20)]
    order, (ask,) = run(["[2]"], texts, window=1024)
    assert isinstance(content_of(ask), RerankContent)
    shown = len(content_of(ask).texts)
    assert 2 <= shown < 20
    assert order == [1, 0, *range(2, 20)]


def test_no_window_for_two_texts_is_no_order() -> None:
    with pytest.raises(NoOrder, match="a window of 256 tokens"):
        run([], ["word " * 200] * 3, window=256)


@given(
    st.lists(st.text(max_size=3000), min_size=2, max_size=40),
    st.text(min_size=1, max_size=300),
    st.integers(512, 5000),
)
def test_no_prompt_passes_the_window(texts: list[str], query: str, window: int) -> None:
    try:
        order, (ask,) = run(["[1]"], texts, query=query, window=window)
    except NoOrder:
        return
    assert estimate_tokens(ask.text) + ask.max_output_tokens <= window
    assert sorted(order) == list(range(len(texts)))
    assert isinstance(content_of(ask), RerankContent)
    assert len(content_of(ask).texts) <= MAX_TEXTS


@pytest.mark.parametrize(
    ("reply", "wanted"),
    [
        ("[3] [1] [2]", (2, 0, 1)),
        ("[3]>[1]", (2, 0, 1)),
        ("3, 1, 2", (2, 0, 1)),
        ("<think>[1] [2]</think>\n[2]", (1, 0, 2)),
        ("1. passage 3\n2. passage 1\n3. passage 2", (2, 0, 1)),
        ("The best is [2], then [2] again and [9].", (1, 0, 2)),
        ('{"order": [2, 3, 1]}', (1, 2, 0)),
        ("", ()),
        ("none of them", ()),
        ("[0] [4]", ()),
        ("<think>[1]", ()),
    ],
)
def test_orders_are_read_however_they_are_written(reply: str, wanted: tuple[int, ...]) -> None:
    assert read_order(reply, 3) == wanted


@given(st.text(max_size=200), st.integers(1, 30))
def test_an_order_has_each_text_once(reply: str, count: int) -> None:
    order = read_order(reply, count)
    assert not order or sorted(order) == list(range(count))


def test_the_offline_model_goes_by_the_words() -> None:
    flow = rerank("Where did the wolf run?", TEXTS, marker_key=KEY, window_tokens=9_999, count=len)
    (ask,) = next(flow)
    assert offline.complete(ask) == '{"order": [2, 1, 3]}'
