"""From notes to an answer: level by level where they are many, and within the calls."""

import pytest

from service.domain.dciso.contents import CloseContent, CondenseContent, PieceContent
from service.domain.dciso.spec import BrowseOption
from service.domain.flows import CUT_OFF, ModelAsk
from service.domain.trajectory import EventKind, NoAnswer
from tests.unit.domain.dciso.browsing import (
    ANSWER,
    APPEND,
    MERGE,
    MOVE,
    Log,
    Run,
    request,
    run,
    says,
    scripted,
)

NOTE = "Somebody left the house at dawn and went to the sea with a dog. " * 2
ENDS = "Text: Ben\nSources: 1"


def noting(ask: ModelAsk) -> str:
    """A model that notes much of every piece."""
    match ask.content:
        case PieceContent(parts=((position, _), *_)):
            return says(f"{position}: {NOTE}")
        case CondenseContent(notes=notes):
            return says(f"{len(notes)} notes: {NOTE}")
    return ENDS


def log(pieces: int) -> Log:
    return Log([f"Chunk {number}." for number in range(1, pieces + 1)])


def condensed(got: Run) -> list[int]:
    """How many notes each prompt had that made one of several."""
    return [len(ask.content.notes) for ask in got.asks if isinstance(ask.content, CondenseContent)]


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
    # All pieces stand behind the answer.
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
    def model(ask: ModelAsk) -> str:
        return "" if isinstance(ask.content, CondenseContent) else noting(ask)

    asked = request(BrowseOption.INDEPENDENT, {APPEND, ANSWER}, window_tokens=600)
    got = run(log(4), model, asked)
    assert got.result.text == "Ben"
    closing = got.asks[-1].content
    assert isinstance(closing, CloseContent)
    assert closing.notes[0].startswith("1: Somebody")
    invalid = [event for event in got.events if event.action.value == "invalid"]
    assert len(invalid) == 3 * len({event.shown for event in invalid})


def test_notes_that_come_to_nothing_are_no_answer() -> None:
    def model(ask: ModelAsk) -> str:
        return "Text: null" if isinstance(ask.content, CondenseContent) else noting(ask)

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


def test_notes_that_were_cut_off_are_asked_for_again() -> None:
    asked = request(BrowseOption.CARRY, {MERGE, ANSWER})
    got = run(log(1), scripted(says("Ann le") + CUT_OFF, says("Ann left."), ENDS), asked)
    assert [event.text for event in got.events[1:2]] == ["Ann left."]


def test_what_is_carried_replaces_what_was_carried() -> None:
    asked = request(BrowseOption.CARRY, {MERGE, MOVE, ANSWER})
    replies = (says("Ann."), says("null"), says("Ann, Cid."), ENDS)
    got = run(log(3), scripted(*replies), asked)
    shown = [ask.content.notes for ask in got.asks if isinstance(ask.content, PieceContent)]
    assert shown == [(), ("Ann.",), ("Ann.",)]
    closing = got.asks[-1].content
    assert isinstance(closing, CloseContent)
    assert closing.notes == ("Ann, Cid.",)
    assert got.batches == [1, 1, 1, 1]


def test_ten_thousand_pieces_are_read_in_batches() -> None:
    def model(ask: ModelAsk) -> str:
        match ask.content:
            case PieceContent(parts=((position, _), *_)) if position % 100:
                return says("null")
        return noting(ask)

    asked = request(BrowseOption.INDEPENDENT, {APPEND, MOVE, ANSWER}, max_calls=10_000)
    got = run(log(10_000), model, asked)
    assert got.result.text == "Ben"
    # Calls for the answer are kept, so that the last pieces are not read.
    assert 9_900 <= got.result.calls <= 10_000
    assert max(got.batches) <= 256
