"""Replies of browsing, as models write them."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.domain.answers.browse.replies import (
    BrowseQuote,
    TextFinder,
    read_guess,
    read_piece,
    split_reply,
)
from service.domain.answers.browse.spec import BrowseAction
from service.domain.prompting.asking import Unusable
from tests.unit.answers.browse.support import AGGREGATION, ANSWER, APPEND, MERGE, MOVE, RETRIEVE

ALL = (MOVE, RETRIEVE, APPEND, MERGE, ANSWER, AGGREGATION)


@pytest.mark.parametrize(
    ("reply", "action", "text"),
    [
        ("Action: append\nText: Ben left.", APPEND, "Ben left."),
        ("**Action:** Merge\n**Text:** Ann came. Ben left.", MERGE, "Ann came. Ben left."),
        ("It helps.\nAction: answer\nAnswer: Ben", ANSWER, "Ben"),
        ("- action = aggregation\n- text: more", AGGREGATION, "more"),
        ("Action: aggregate\nText: null", AGGREGATION, ""),
        ("Action: retrieve\nQuery: who left", RETRIEVE, "who left"),
        ("Action: move\nText: null", MOVE, ""),
        ("Action: move\nText: but it says much", MOVE, ""),
        ("Action: append\nText: N/A.", MOVE, ""),
        ("null", MOVE, ""),
        ("<think>hm\nAction: move\n</think>\nAction: answer\nText: Ben", ANSWER, "Ben"),
        ('```json\n{"action": "append", "text": "Ben left."}\n```', APPEND, "Ben left."),
        ('{"action": "move", "text": null, "quotes": []}', MOVE, ""),
        ("Action: append\nBen left.", APPEND, "Ben left."),
    ],
)
def test_an_action_and_its_text_are_read(reply: str, action: BrowseAction, text: str) -> None:
    said = read_piece(reply, ALL)
    assert (said.action, said.text) == (action, text)


@pytest.mark.parametrize(
    ("reply", "fault"),
    [
        ("", "it is empty"),
        ("<think>for ever", "it is empty"),
        ("Ben left.", "it names no action"),
        ("Action: dance\nText: la", "it names no action"),
    ],
)
def test_what_cannot_be_done_is_said(reply: str, fault: str) -> None:
    with pytest.raises(Unusable, match=fault):
        read_piece(reply, ALL)


def test_an_action_that_is_not_offered_is_refused() -> None:
    with pytest.raises(Unusable, match="retrieve is not offered"):
        read_piece("Action: retrieve\nText: x", (MOVE, APPEND, MERGE))


def test_without_a_choice_the_reply_is_the_text() -> None:
    assert read_piece("Ben left.", (MOVE, APPEND)).text == "Ben left."
    assert read_piece("Action: note\nText: Ben left.", (MOVE, APPEND)).action is APPEND
    assert read_piece("null", (MOVE, APPEND)).action is MOVE


def test_without_move_there_is_no_null() -> None:
    with pytest.raises(Unusable, match="it has no text"):
        read_piece("Text: null", (APPEND,))


@pytest.mark.parametrize(
    "reply",
    [
        'Text: Ben\nQuotes:\n[12] "Ben left"\n[13] at dawn',
        'Text: Ben\n**Quotes:**\n- 12: "Ben left"\n- (13) at dawn\n',
        "Text: Ben\nQuote 12: Ben left\nQuote 13: at dawn",
        "Text: Ben\nQuotes: [12] Ben left\n[13] at dawn",
    ],
)
def test_quotes_are_read_with_their_chunks(reply: str) -> None:
    said = split_reply(reply)
    assert said.text == "Ben"
    assert [quote.chunk for quote in said.quotes] == [12, 13]
    assert [quote.words.strip('"') for quote in said.quotes] == ["Ben left", "at dawn"]


def test_quotes_of_json_are_read() -> None:
    held = [{"chunk": 12, "words": "Ben left"}, {"words": "at dawn"}, {"chunk": 1}, 7, "[3] x"]
    said = split_reply(json.dumps({"text": "Ben", "quotes": held, "sources": [2, 1, 2]}))
    assert said.quotes[:2] == (
        BrowseQuote(chunk=12, words="Ben left"),
        BrowseQuote(chunk=0, words="at dawn"),
    )
    assert said.quotes[2].chunk == 3
    assert said.sources == (2, 1)


def test_sources_end_a_text_of_several_lines() -> None:
    said = split_reply("Text: Ann came.\n\nSources of grief: none.\nBen left.\nSources: 2, 3")
    assert said.text == "Ann came.\n\nSources of grief: none.\nBen left."
    assert said.sources == (2, 3)


@pytest.mark.parametrize(
    "reply",
    ['{"text": "Ben left', '```json\n{"text": "Ben', '{ "result": "Ben"}', '{"text": "Ben" "no"}'],
)
def test_broken_json_is_no_text(reply: str) -> None:
    for offers in (ALL, (MOVE, APPEND), (ANSWER,)):
        with pytest.raises(Unusable, match="it is broken JSON"):
            read_piece(reply, offers)


def test_a_brace_begins_a_text_too() -> None:
    assert split_reply("{ x = 1; } is the block").text == "{ x = 1; } is the block"


def test_a_string_of_json_may_have_lines() -> None:
    assert split_reply('{"text": "Ann.\nBen."}').text == "Ann.\nBen."


OPTIONS = ("at noon", "at dawn", "never")


@pytest.mark.parametrize(
    "reply",
    [
        '{"option": "B"}',
        "B",
        "b.",
        "(B) at dawn",
        "At dawn.",
        '{"option": "B. at dawn"}',
        "Option B",
    ],
)
def test_an_option_is_named_by_its_letter_or_its_words(reply: str) -> None:
    assert read_guess(reply, OPTIONS) == "at dawn"


@pytest.mark.parametrize(
    "reply", ["", "D", "at dusk", '{"option": ""}', "both", "at dawn or never"]
)
def test_what_names_no_option_is_refused(reply: str) -> None:
    with pytest.raises(Unusable, match="none of the options"):
        read_guess(reply, OPTIONS)


TOLD = TextFinder(offers=(ANSWER,))


@pytest.mark.parametrize(
    ("reply", "told"),
    [
        ("Text: Ben left", "Ben left"),
        ("Text: Ben\nQuo", "Ben"),
        ("Text: Ben\nQuote 1", "Ben"),
        ("Text: Ben\nQuestions remain", "Ben\nQuestions remain"),
        ("Text: nul", ""),
        ("Text: null", ""),
        ("Text: Nulla poena", "Nulla poena"),
        ("<think>Text: no", ""),
        ('{"text": "Ben \\"th', 'Ben "th'),
        ('{"text": nul', ""),
        ("Tex", ""),
    ],
)
def test_the_text_of_an_unfinished_answer_is_streamed(reply: str, told: str) -> None:
    assert TOLD(reply) == told


def test_only_an_answer_is_streamed() -> None:
    both = TextFinder(offers=(ANSWER, AGGREGATION))
    assert both("Action: aggregate\nText: Ann") == ""
    assert both("Action: answer\nText: Ann") == "Ann"
    assert TextFinder(offers=(MOVE, ANSWER))("Text: Ann") == "Ann"


PIECES = st.sampled_from(
    [
        *("Text: ", "Action: answer\n", "Action: append\n", "\nQuotes:\n", "\nQuote 12: Ben left"),
        *("\nSources: 1", "\nSources", " left", "null", "None", " of them", "\n", "{", "}", '"'),
        *('"text": "', '"action": "answer", ', "\\n", "<think>", "</think>\n", "no relevant info"),
    ]
)


@given(st.lists(PIECES, max_size=9).map("".join), st.sampled_from([(ANSWER,), ALL]))
def test_what_is_told_only_grows(reply: str, offers: tuple[BrowseAction, ...]) -> None:
    find_text, before = TextFinder(offers=offers), ""
    for end in range(len(reply) + 1):
        told = find_text(reply[:end])
        assert told.startswith(before)
        before = told


@given(st.text(max_size=300) | st.lists(PIECES, max_size=9).map("".join))
def test_any_text_is_read_or_refused(reply: str) -> None:
    try:
        said = read_piece(reply, ALL)
    except Unusable as fault:
        assert str(fault)
    else:
        assert said.action in ALL
        assert "\0" not in said.text
