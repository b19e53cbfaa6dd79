"""Multiple-choice questions: if nothing that was read answers, an option is chosen."""

import json
from collections.abc import Sequence

import pytest

from service.domain.answers.browse.spec import BrowseOption, BrowseRequest, options_of
from service.domain.answers.trajectory import NoAnswer
from service.domain.prompting.ends import End
from service.domain.prompting.flows import ModelReply, ModelRequest
from service.llm.offline.model import complete
from tests.support.contents import GuessContent, content_of
from tests.unit.answers.browse.support import (
    ANSWER,
    APPEND,
    MOVE,
    NULL,
    Log,
    Run,
    ended,
    request,
    run,
    says,
    scripted,
)

THREE = ("Ann came in.", "Ben left at dawn.", "Cid slept.")
OPTIONS = ("a dog", "the sea, at dawn", "nobody")
NONE = '{"text": "", "sources": []}'
B = '{"option": "B"}'


def guess_of(got: Run) -> GuessContent:
    found: list[GuessContent] = [
        content_of(ask) for ask in got.asks if isinstance(content_of(ask), GuessContent)
    ]
    (content,) = found
    return content


def independent(**more: object) -> BrowseRequest:
    return request(BrowseOption.INDEPENDENT, {APPEND, MOVE, ANSWER}, options=OPTIONS, **more)


def test_notes_that_do_not_answer_are_guessed_from() -> None:
    got = run(Log(THREE), scripted(NULL, says("Ben left."), NULL, NONE, B), independent())
    assert (got.result.text, got.result.no_answer) == ("the sea, at dawn", None)
    assert got.result.guessed
    assert got.result.spans == ()
    assert guess_of(got).texts == ("Ben left.",)
    assert got.moves()[-2:] == [("aggregation", "answer"), ("end", "answer")]
    assert got.events[-1].reasoning == "a guess by the model among the options: not_found"
    last = got.asks[-1]
    assert "B. the sea, at dawn\n" in last.text
    assert last.reply_schema is not None
    assert last.reply_schema["properties"]["option"]["enum"] == ["A", "B", "C"]


def test_what_is_known_is_no_guess() -> None:
    got = run(Log(THREE), scripted(NULL, says("Ben."), NULL, says("nobody")), independent())
    assert (got.result.text, got.result.guessed) == ("nobody", False)


def test_without_notes_the_pieces_that_fit_best_are_guessed_from() -> None:
    log = Log(THREE, best=(2, 3))
    got = run(log, scripted(NULL, NULL, NULL, B), request(BrowseOption.SCAN, options=OPTIONS))
    assert got.result.guessed
    assert guess_of(got).texts == THREE[1:]
    assert got.events[-3].shown == ("p.2", "p.3")


@pytest.mark.parametrize(
    ("reply", "tries"),
    [("it may be any", 3), (ended(End.LENGTH, "{"), 3), (ended(End.REFUSAL), 1)],
)
def test_a_guess_that_is_no_use_is_made_by_words(reply: str | ModelReply, tries: int) -> None:
    replies = (NULL, says("She saw the sea at dawn."), NULL, NONE, *[reply] * tries)
    got = run(Log(THREE), scripted(*replies), independent())
    assert (got.result.text, got.result.guessed) == ("the sea, at dawn", True)
    assert got.events[-1].reasoning == "a guess by its words among the options: not_found"
    assert got.result.calls == len(replies)


def test_a_guess_that_is_no_use_is_asked_for_again() -> None:
    replies = (NULL, says("She saw the sea at dawn."), NULL, NONE, ended(End.THINKING), B)
    got = run(Log(THREE), scripted(*replies), independent())
    assert got.events[-1].reasoning == "a guess by the model among the options: not_found"
    before, again = got.asks[-2:]
    assert "all of it was thinking" in again.text.removeprefix(before.text)
    assert (again.attempt, again.max_output_tokens) == (1, 2 * before.max_output_tokens)


def test_a_guess_is_asked_for_while_calls_are_left() -> None:
    asked = request(BrowseOption.SCAN, options=OPTIONS, max_calls=4)
    got = run(Log(THREE), scripted(NULL, NULL, NULL, "hm"), asked, query="Who was at sea?")
    assert (got.result.text, got.result.calls) == ("the sea, at dawn", 4)


def test_without_a_call_left_it_is_guessed_by_words() -> None:
    asked = request(BrowseOption.SCAN, options=OPTIONS, max_calls=2)
    got = run(Log(THREE), scripted(NULL, NULL), asked, query="Who was at sea?")
    assert (got.result.text, got.result.guessed) == ("the sea, at dawn", True)
    assert got.events[-1].reasoning.endswith("step_limit")
    assert got.result.calls == 2


def test_options_without_room_cost_no_call() -> None:
    long = tuple(f"{number} " + "word " * 150 for number in range(26))
    asked = request(BrowseOption.SCAN, options=long, window_tokens=600)
    got = run(Log(THREE), scripted(NULL, NULL, NULL), asked)
    assert (got.result.text in long, got.result.calls) == (True, 3)


def test_what_could_not_be_read_is_no_guess() -> None:
    refused = ended(End.REFUSAL, "", "no")
    got = run(Log(THREE), lambda _: refused, request(BrowseOption.SCAN, options=OPTIONS))
    assert got.result.no_answer is NoAnswer.UNREADABLE
    none = run(Log(()), scripted(), request(BrowseOption.SCAN, options=OPTIONS))
    assert none.result.no_answer is NoAnswer.EMPTY


@pytest.mark.parametrize("option", list(BrowseOption))
def test_ten_questions_with_options_have_ten_answers(option: BrowseOption) -> None:
    """Nothing in the log says any of it; before, all ten were without an answer."""

    def model(ask: ModelRequest) -> str:
        return complete(ask)

    for number in range(10):
        query = f"Which volcano erupted in year {number}?"
        asked = request(option, options=OPTIONS)
        got = run(Log(THREE, best=(2,)), model, asked, query=query)
        assert got.result.text in OPTIONS
        assert got.result.guessed


@pytest.mark.parametrize(
    ("values", "options"),
    [
        (["a", "b"], ("a", "b")),
        (["a"], ()),
        (["a", None], ()),
        (["a", 1], ()),
        (["a", " "], ()),
        ([str(number) for number in range(27)], ()),
    ],
)
def test_a_schema_of_an_enumeration_has_options(
    values: Sequence[object], options: tuple[str, ...]
) -> None:
    assert options_of({"type": "string", "enum": values}) == options
    assert options_of({"type": "string"}) == options_of(None) == ()


def test_options_are_kept_with_the_request() -> None:
    asked = BrowseRequest(options=OPTIONS)
    assert BrowseRequest.from_json(json.loads(json.dumps(asked.to_json()))) == asked
    # A release before does not know them.
    assert "options" not in BrowseRequest().to_json()
    assert BrowseRequest.from_json(BrowseRequest().to_json()) == BrowseRequest()
