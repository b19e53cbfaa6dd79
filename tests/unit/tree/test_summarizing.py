"""Summaries: the prompt, and the handling of real replies."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.domain.prompting.asking import MAX_TRIES, NoUse
from service.domain.prompting.ends import End
from service.domain.prompting.flows import Flow, ModelReply, ModelRequest, Purpose
from service.domain.prompting.marking import marked
from service.domain.prompting.tokens import estimate_tokens
from service.domain.tree.nodes import SummarySource
from service.domain.tree.spec import TreeSpec
from service.domain.tree.summarizing import Summary, compress, summarize
from tests.support.contents import CompressContent, SummarizeContent, content_of

KEY = b"a key that nobody outside knows"
SPEC = TreeSpec(summary_tokens=16)
TERMS: dict[str, Any] = {"spec": SPEC, "marker_key": KEY, "count": estimate_tokens}
TEXT = "The king rode out and came back with a wolf. Nobody knew why."


def cut(text: str) -> ModelReply:
    return ModelReply(text=text, model="m", end=End.LENGTH)


def run(flow: Flow[Summary], *replies: str | ModelReply) -> tuple[Summary, list[ModelRequest]]:
    """Returns what a flow makes of these replies, and what it asked."""
    asks: list[ModelRequest] = []
    try:
        asks += next(flow)
        for reply in replies:
            said = ModelReply(text=reply, model="m") if isinstance(reply, str) else reply
            asks += flow.send([said])
    except StopIteration as stop:
        return stop.value, asks
    raise AssertionError("the flow asks on")


def leaf(
    *replies: str | ModelReply, text: str = TEXT, window: int = 32_000
) -> tuple[Summary, list[ModelRequest]]:
    return run(summarize(text, window_tokens=window, **TERMS), *replies)


def parent(summaries: list[str], *replies: str) -> tuple[Summary, list[ModelRequest]]:
    return run(compress(summaries, window_tokens=32_000, **TERMS), *replies)


def test_a_text_is_asked_for_between_marks_after_what_all_texts_share() -> None:
    summary, (ask,) = leaf("The king brought a wolf.")
    assert summary == Summary(text="The king brought a wolf.", made=SummarySource.MODEL, tokens=6)
    assert (ask.purpose, ask.template, ask.attempt) == (Purpose.SUMMARIZE, "tree.summarize/2", 0)
    assert content_of(ask) == SummarizeContent(text=TEXT, max_tokens=16)
    task, text = ask.segments
    assert "At most 16 tokens; in English these are about 12 words." in task.text
    assert text.text == f"[TEXT]\n{marked(TEXT, KEY)}"
    assert ask.max_output_tokens > 2 * SPEC.summary_tokens


def test_summaries_that_fit_are_joined_without_a_call() -> None:
    summary, asks = parent(["The king rode out.", "A wolf came back."])
    assert asks == []
    assert summary == Summary(
        text="The king rode out.\nA wolf came back.", made=SummarySource.JOINED, tokens=9
    )


def test_summaries_that_do_not_fit_are_compressed() -> None:
    long = ["The king rode out, and nobody knew why.", "A wolf came back with him that night."]
    summary, (ask,) = parent(long, "The king brought a wolf.")
    assert summary.text == "The king brought a wolf."
    assert (ask.purpose, ask.template) == (Purpose.SUMMARIZE, "tree.compress/2")
    assert content_of(ask) == CompressContent(summaries=tuple(long), max_tokens=16)
    assert ask.segments[1].text == "[SUMMARIES]\n" + "".join(marked(one, KEY) for one in long)


def test_a_text_of_blanks_needs_no_model() -> None:
    summary, asks = leaf(text=" \n\n ")
    assert (summary.text, summary.tokens, asks) == ("", 0, [])
    summary, asks = parent(["", "A wolf came back."])
    assert (summary.text, summary.made, asks) == ("A wolf came back.", SummarySource.JOINED, [])


@pytest.mark.parametrize(
    ("empty", "fault"),
    [
        ("", "it was empty"),
        (" \n", "it was empty"),
        ("<think>The king", "all of it was thinking"),
        ("<think>Hm.</think>\n", "it was empty"),
    ],
)
def test_an_empty_reply_is_asked_again_and_said_to_be_empty(empty: str, fault: str) -> None:
    summary, asks = leaf(empty, empty, "The king brought a wolf.")
    assert summary.text == "The king brought a wolf."
    assert [ask.attempt for ask in asks] == [0, 1, 2]
    assert all(ask.text.startswith(asks[0].text) for ask in asks)
    assert all(fault in ask.text for ask in asks[1:])


def test_the_third_empty_reply_in_a_row_is_the_last() -> None:
    with pytest.raises(NoUse, match="no summary in 3 replies; of the last one: it was") as refusal:
        leaf(*[""] * MAX_TRIES)
    assert refusal.value.retryable is False


@pytest.mark.parametrize("end", [End.REFUSAL, End.FILTER])
def test_a_refusal_ends_it_at_once_with_its_words(end: End) -> None:
    with pytest.raises(NoUse, match="refused the text: not that") as refusal:
        leaf(ModelReply(text="", model="m", end=end, said="not that"))
    assert (refusal.value.retryable, refusal.value.end) == (False, end)


def test_a_summary_that_was_cut_off_gets_more_room_once() -> None:
    summary, asks = leaf(cut("The king rode o"), "The king.")
    assert (summary.text, summary.made) == ("The king.", SummarySource.MODEL)
    assert asks[1].max_output_tokens == 2 * asks[0].max_output_tokens
    summary, asks = leaf(cut("The king"), cut("The king rode out. He br"))
    assert (summary.text, summary.made) == ("The king rode out. …", SummarySource.CUT)


def test_a_summary_that_is_too_long_already_is_cut_back_at_once() -> None:
    summary, asks = leaf(cut("The king rode out. " * 9))
    assert (len(asks), summary.made) == (1, SummarySource.CUT)
    assert summary.tokens <= SPEC.summary_tokens


def test_without_more_room_what_there_is_is_taken() -> None:
    summary, asks = leaf(cut("The king rode o"), window=1600)
    assert (len(asks), summary.text, summary.made) == (1, "The king rode …", SummarySource.CUT)


@pytest.mark.parametrize(
    ("reply", "text", "made"),
    [
        ("  The king.\n", "The king.", SummarySource.MODEL),
        ("<think>What is it?</think>\nThe king.", "The king.", SummarySource.MODEL),
        ("Summary: The king.", "The king.", SummarySource.MODEL),
        ("**Summary:** The king.", "The king.", SummarySource.MODEL),
        ("## Summary\n\nThe king.", "The king.", SummarySource.MODEL),
        ("[SUMMARY]\nThe king.", "The king.", SummarySource.MODEL),
        ("Summary", "Summary", SummarySource.MODEL),
        ("A summary: the king.", "A summary: the king.", SummarySource.MODEL),
        (
            "The king rode out that night and came back. He brought a wolf, as everybody saw.",
            "The king rode out that night and came back. …",
            SummarySource.CUT,
        ),
    ],
)
def test_what_models_write_around_a_summary_is_left_out(
    reply: str, text: str, made: SummarySource
) -> None:
    summary, _ = leaf(reply)
    assert (summary.text, summary.made) == (text, made)
    assert summary.tokens == estimate_tokens(text)


@given(reply=st.text(max_size=200).filter(str.strip), is_cut=st.booleans())
def test_a_summary_is_never_longer_than_the_spec_says(reply: str, is_cut: bool) -> None:
    summary, _ = leaf(cut(reply) if is_cut else reply, window=1200)
    assert summary.text
    assert summary.tokens == estimate_tokens(summary.text) <= SPEC.summary_tokens
