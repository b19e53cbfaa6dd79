"""Summaries: what is asked, and what is made of what models really write."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.domain.flows import CUT_OFF, Flow, ModelAsk, ModelReply, Purpose
from service.domain.marking import marked
from service.domain.tokens import estimate_tokens
from service.domain.tree.contents import CompressContent, SummarizeContent
from service.domain.tree.nodes import Made
from service.domain.tree.spec import TreeSpec
from service.domain.tree.summarizing import MAX_TRIES, NoSummary, Summary, compress, summarize

KEY = b"a key that nobody outside knows"
SPEC = TreeSpec(summary_tokens=16)
TEXT = "The king rode out and came back with a wolf. Nobody knew why."


def run(flow: Flow[Summary], *replies: str) -> tuple[Summary, list[ModelAsk]]:
    """What a flow makes of these replies, and what it asked."""
    asks: list[ModelAsk] = []
    try:
        asks += next(flow)
        for reply in replies:
            asks += flow.send([ModelReply(text=reply, model="m")])
    except StopIteration as stop:
        return stop.value, asks
    raise AssertionError("the flow asks on")


def leaf(*replies: str, text: str = TEXT) -> tuple[Summary, list[ModelAsk]]:
    flow = summarize(text, spec=SPEC, marker_key=KEY, count=estimate_tokens)
    return run(flow, *replies)


def parent(summaries: list[str], *replies: str) -> tuple[Summary, list[ModelAsk]]:
    flow = compress(summaries, spec=SPEC, marker_key=KEY, count=estimate_tokens)
    return run(flow, *replies)


def test_a_text_is_asked_for_between_marks_behind_what_all_texts_share() -> None:
    summary, (ask,) = leaf("The king brought a wolf.")
    assert summary == Summary(text="The king brought a wolf.", made=Made.MODEL, tokens=6)
    assert (ask.purpose, ask.template, ask.attempt) == (Purpose.SUMMARIZE, "tree.summarize/1", 0)
    assert ask.content == SummarizeContent(text=TEXT, max_tokens=16)
    task, text = ask.segments
    assert "At most 16 tokens; in English these are about 12 words." in task.text
    assert text.text == f"[TEXT]\n{marked(TEXT, KEY)}"
    assert ask.max_output_tokens > 2 * SPEC.summary_tokens


def test_summaries_that_fit_are_joined_without_a_call() -> None:
    summary, asks = parent(["The king rode out.", "A wolf came back."])
    assert asks == []
    assert summary == Summary(
        text="The king rode out.\nA wolf came back.", made=Made.JOINED, tokens=9
    )


def test_summaries_that_do_not_fit_are_compressed() -> None:
    long = ["The king rode out, and nobody knew why.", "A wolf came back with him that night."]
    summary, (ask,) = parent(long, "The king brought a wolf.")
    assert summary.text == "The king brought a wolf."
    assert (ask.purpose, ask.template) == (Purpose.SUMMARIZE, "tree.compress/1")
    assert ask.content == CompressContent(summaries=tuple(long), max_tokens=16)
    assert ask.segments[1].text == "[SUMMARIES]\n" + "".join(marked(one, KEY) for one in long)


def test_a_text_of_blanks_needs_no_model() -> None:
    summary, asks = leaf(text=" \n\n ")
    assert (summary.text, summary.tokens, asks) == ("", 0, [])
    summary, asks = parent(["", "A wolf came back."])
    assert (summary.text, summary.made, asks) == ("A wolf came back.", Made.JOINED, [])


@pytest.mark.parametrize("empty", ["", " \n", CUT_OFF, "<think>The king", "<think>Hm.</think>\n"])
def test_an_empty_reply_is_asked_again(empty: str) -> None:
    summary, asks = leaf(empty, empty, "The king brought a wolf.")
    assert summary.text == "The king brought a wolf."
    assert [ask.attempt for ask in asks] == [0, 1, 2]
    assert len({ask.text for ask in asks}) == 1


def test_the_third_empty_reply_in_a_row_is_the_last() -> None:
    flow = summarize(TEXT, spec=SPEC, marker_key=KEY, count=estimate_tokens)
    with pytest.raises(NoSummary, match="no summary in 3 tries") as refusal:
        run(flow, *[""] * MAX_TRIES)
    assert refusal.value.retryable is False


@pytest.mark.parametrize(
    ("reply", "text", "made"),
    [
        ("  The king.\n", "The king.", Made.MODEL),
        ("<think>What is it?</think>\nThe king.", "The king.", Made.MODEL),
        ("Summary: The king.", "The king.", Made.MODEL),
        ("**Summary:** The king.", "The king.", Made.MODEL),
        ("## Summary\n\nThe king.", "The king.", Made.MODEL),
        ("[SUMMARY]\nThe king.", "The king.", Made.MODEL),
        ("Summary", "Summary", Made.MODEL),
        ("A summary: the king.", "A summary: the king.", Made.MODEL),
        (
            "The king rode out that night and came back. He brought a wolf, as everybody saw.",
            "The king rode out that night and came back. …",
            Made.CUT,
        ),
        ("The king rode out." + CUT_OFF, "The king rode out. …", Made.CUT),
        ("The king rode out. He br" + CUT_OFF, "The king rode out. …", Made.CUT),
        ("The king rode o" + CUT_OFF, "The king rode …", Made.CUT),
    ],
)
def test_what_models_write_around_a_summary_is_left_out(reply: str, text: str, made: Made) -> None:
    summary, _ = leaf(reply)
    assert (summary.text, summary.made) == (text, made)
    assert summary.tokens == estimate_tokens(text)


@given(reply=st.text(max_size=200).filter(str.strip), cut=st.booleans())
def test_a_summary_is_never_longer_than_the_spec_says(reply: str, cut: bool) -> None:
    summary, _ = leaf(reply + CUT_OFF if cut else reply)
    assert summary.text
    assert summary.tokens == estimate_tokens(summary.text) <= SPEC.summary_tokens
