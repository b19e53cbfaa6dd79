"""From notes to an answer: level by level where they are many, and within the calls."""

import pytest

from service.domain.answers.browse.spec import BrowseOption
from service.domain.answers.trajectory import Action, EventKind, NoAnswer
from service.domain.prompting.ends import End
from service.domain.prompting.flows import ModelReply, ModelRequest
from service.domain.prompting.tokens import estimate_tokens
from tests.support.contents import CloseContent, CondenseContent, PieceContent, content_of
from tests.unit.answers.browse.support import (
    ANSWER,
    APPEND,
    MERGE,
    MOVE,
    Log,
    Run,
    ended,
    request,
    run,
    says,
    scripted,
)

NOTE = "Somebody left the house at dawn and went to the sea with a dog. " * 2
ENDS = "Text: Ben\nSources: 1"


def noting(ask: ModelRequest) -> str:
    """Returns a model that notes much of every piece."""
    match content_of(ask):
        case PieceContent(parts=((position, _), *_)):
            return says(f"{position}: {NOTE}")
        case CondenseContent(notes=notes):
            return says(f"{len(notes)} notes: {NOTE}")
    return ENDS


def log(pieces: int) -> Log:
    return Log([f"Chunk {number}." for number in range(1, pieces + 1)])


def closing_of(got: Run) -> CloseContent:
    found: set[CloseContent] = {
        content_of(ask) for ask in got.asks if isinstance(content_of(ask), CloseContent)
    }
    (content,) = found
    return content


def condensed(got: Run) -> list[int]:
    """Returns how many notes each prompt had that made one of several."""
    return [
        len(content_of(ask).notes)
        for ask in got.asks
        if isinstance(content_of(ask), CondenseContent)
    ]


def test_notes_that_fit_are_answered_from_at_once() -> None:
    asked = request(BrowseOption.INDEPENDENT, {APPEND, ANSWER})
    got = run(log(20), noting, asked)
    assert got.batches == [20, 1]


def test_notes_that_do_not_fit_are_made_fewer_level_by_level() -> None:
    asked = request(BrowseOption.INDEPENDENT, {APPEND, ANSWER}, window_tokens=600)
    got = run(log(30), noting, asked)
    assert got.batches[0] == 30
    assert len(got.batches) >= 4, "two levels and more"
    assert got.batches[1:] == sorted(got.batches[1:], reverse=True)
    assert min(condensed(got)) >= 2
    # All pieces are after the answer.
    last = [event for event in got.events if event.kind is EventKind.AGGREGATION][-1]
    assert len(last.shown) == 30
    assert got.result.text == "Ben"


@pytest.mark.parametrize("max_calls", range(1, 40, 3))
def test_the_answer_is_made_whatever_calls_there_are(max_calls: int) -> None:
    asked = request(
        BrowseOption.INDEPENDENT, {APPEND, ANSWER}, window_tokens=600, max_calls=max_calls
    )
    got = run(log(30), noting, asked)
    assert got.result.calls <= max_calls
    assert (got.result.no_answer is NoAnswer.STEP_LIMIT) == (max_calls == 1)


def test_a_group_that_makes_no_sense_is_cut_and_kept() -> None:
    def model(ask: ModelRequest) -> str:
        return "" if isinstance(content_of(ask), CondenseContent) else noting(ask)

    asked = request(BrowseOption.INDEPENDENT, {APPEND, ANSWER}, window_tokens=600)
    got = run(log(4), model, asked)
    assert got.result.text == "Ben"
    closing = content_of(got.asks[-1])
    assert isinstance(closing, CloseContent)
    assert closing.notes[0].startswith("1: Somebody")
    invalid = [event for event in got.events if event.action.value == "invalid"]
    assert len(invalid) == 3 * len({event.shown for event in invalid})


def test_notes_that_come_to_nothing_are_no_answer() -> None:
    def model(ask: ModelRequest) -> str:
        return '{"text": ""}' if isinstance(content_of(ask), CondenseContent) else noting(ask)

    asked = request(BrowseOption.INDEPENDENT, {APPEND, ANSWER}, window_tokens=600)
    assert run(log(6), model, asked).result.no_answer is NoAnswer.NOT_FOUND


def test_notes_that_are_carried_are_asked_for_again_when_they_are_too_long() -> None:
    long = "Ann left. " * 500
    replies = (says(long), says("Ann left."), says(long), says(long), ENDS)
    asked = request(BrowseOption.CARRY, {MERGE, MOVE, ANSWER}, window_tokens=1024)
    got = run(log(2), scripted(*replies), asked)
    assert [action for _, action in got.moves()][:4] == ["invalid", "merge", "invalid", "merge"]
    assert "more than 85 tokens" in got.events[0].text
    kept = got.events[3].text
    assert kept.endswith("left. …")
    assert len(kept) <= 4 * 85


CUT = ended(End.LENGTH, '{"text": "The council first met in May')


def test_notes_that_were_cut_off_are_asked_for_again_with_more_room() -> None:
    asked = request(BrowseOption.CARRY, {MERGE, ANSWER})
    got = run(log(1), scripted(CUT, says("Ann left."), ENDS), asked)
    assert got.moves()[:2] == [("p.1", "invalid"), ("p.1", "merge")]
    assert closing_of(got).notes == ("Ann left.",)
    first, again = got.asks[:2]
    assert "too long, and was cut off" in again.text
    assert again.text.startswith(first.text)
    assert again.max_output_tokens == 2 * first.max_output_tokens


def test_more_room_stays_within_the_window() -> None:
    asked = request(BrowseOption.CARRY, {MERGE, ANSWER}, window_tokens=600)
    got = run(log(1), scripted(CUT, says("Ann left."), ENDS), asked)
    for ask in got.asks:
        assert estimate_tokens(ask.text) + ask.max_output_tokens < 600


def test_an_answer_that_was_cut_off_is_asked_for_again() -> None:
    asked = request(BrowseOption.INDEPENDENT, {APPEND, ANSWER})
    got = run(log(1), scripted(says("Ann."), CUT, ENDS), asked)
    assert got.result.text == "Ben"
    got = run(log(1), scripted(says("Ann."), CUT, CUT, CUT), asked)
    assert (got.result.text, got.result.no_answer) == ("", NoAnswer.UNREADABLE)
    assert got.result.cause == "it was too long, and was cut off before its end"


@pytest.mark.parametrize(
    "reply", [CUT, ended(End.EMPTY), ended(End.THINKING), ended(End.TOOL_CALL), ended(End.UNKNOWN)]
)
def test_what_is_no_whole_reply_is_no_note(reply: ModelReply) -> None:
    asked = request(BrowseOption.INDEPENDENT, {APPEND, ANSWER})
    got = run(log(2), scripted(reply, says("Ann."), reply, reply, ENDS), asked)
    assert closing_of(got).notes == ("Ann.",)
    assert got.result.passed == 1
    assert {event.end for event in got.events if event.action is Action.INVALID} == {reply.end}


def test_a_group_of_notes_that_was_cut_off_is_asked_for_again() -> None:
    def model(ask: ModelRequest) -> str | ModelReply:
        is_first = isinstance(content_of(ask), CondenseContent) and ask.attempt == 0
        return CUT if is_first else noting(ask)

    asked = request(BrowseOption.INDEPENDENT, {APPEND, ANSWER}, window_tokens=600)
    got = run(log(6), model, asked)
    assert got.result.text == "Ben"
    assert not any("council" in ask.text for ask in got.asks)


REFUSED = ended(End.REFUSAL, "", "I cannot help with that")


def test_a_refused_piece_is_reported_and_not_asked_for_again() -> None:
    asked = request(BrowseOption.INDEPENDENT, {APPEND, MOVE, ANSWER})
    got = run(log(2), scripted(REFUSED, says("Ann."), ENDS), asked)
    assert got.batches == [2, 1]
    assert got.moves()[0] == ("p.1", "invalid")
    assert "refused the text: I cannot help with that" in got.events[0].text
    assert (got.result.text, got.result.passed) == ("Ben", 1)


@pytest.mark.parametrize("option", [BrowseOption.INDEPENDENT, BrowseOption.SCAN])
def test_when_all_pieces_are_refused_that_is_the_answer(option: BrowseOption) -> None:
    got = run(log(3), lambda _: REFUSED, request(option))
    assert got.result.no_answer is NoAnswer.UNREADABLE
    assert "I cannot help with that" in got.result.cause
    assert (got.result.passed, got.result.calls) == (3, 3)


def test_an_answer_that_is_refused_is_none() -> None:
    asked = request(BrowseOption.INDEPENDENT, {APPEND, ANSWER})
    got = run(log(1), scripted(says("Ann."), REFUSED), asked)
    assert got.result.no_answer is NoAnswer.UNREADABLE
    assert "I cannot help with that" in got.result.cause


def test_what_is_carried_replaces_what_was_carried() -> None:
    asked = request(BrowseOption.CARRY, {MERGE, MOVE, ANSWER})
    replies = (says("Ann."), says("null"), says("Ann, Cid."), ENDS)
    got = run(log(3), scripted(*replies), asked)
    shown = [content_of(ask).notes for ask in got.asks if isinstance(content_of(ask), PieceContent)]
    assert shown == [(), ("Ann.",), ("Ann.",)]
    closing = content_of(got.asks[-1])
    assert isinstance(closing, CloseContent)
    assert closing.notes == ("Ann, Cid.",)
    assert got.batches == [1, 1, 1, 1]


def test_ten_thousand_pieces_are_read_in_batches() -> None:
    def model(ask: ModelRequest) -> str:
        match content_of(ask):
            case PieceContent(parts=((position, _), *_)) if position % 100:
                return says("null")
        return noting(ask)

    asked = request(BrowseOption.INDEPENDENT, {APPEND, MOVE, ANSWER}, max_calls=10_000)
    got = run(log(10_000), model, asked)
    assert got.result.text == "Ben"
    # Calls for the answer are kept, so that the last pieces are not read.
    assert 9_900 <= got.result.calls <= 10_000
    assert max(got.batches) <= 256
