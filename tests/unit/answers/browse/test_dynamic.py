"""Algorithm 1: at each piece the model chooses an action."""

import json
from collections.abc import Iterable

import pytest

from service.domain.answers.browse.pieces import RankPieces, ReadPiece
from service.domain.answers.browse.sequential import MAX_RETRIEVALS
from service.domain.answers.browse.spec import BrowseAction, BrowseOption, ReadingOrder
from service.domain.answers.trajectory import NoAnswer
from service.domain.prompting.flows import ModelRequest
from tests.support.contents import CloseContent, PieceContent, content_of
from tests.unit.answers.browse.support import (
    AGGREGATION,
    ANSWER,
    APPEND,
    CLOSING,
    MERGE,
    MOVE,
    NULL,
    RETRIEVE,
    Log,
    Run,
    does,
    request,
    run,
    says,
    scripted,
)

FOUR = ("Ann came in.", "Ben left at dawn.", "Cid slept.", "Dora left at noon.")
DYNAMIC = request(BrowseOption.DYNAMIC)
ENDS = "Text: Ben\nSources: 1"


def pieces_of(got: Run) -> list[PieceContent]:
    return [content_of(ask) for ask in got.asks if isinstance(content_of(ask), PieceContent)]


def closing_of(got: Run) -> CloseContent:
    found: list[CloseContent] = [
        content_of(ask) for ask in got.asks if isinstance(content_of(ask), CloseContent)
    ]
    (content,) = found
    return content


def test_pieces_are_passed_noted_and_answered_from() -> None:
    replies = (does("move", "null"), does("append", "Ben left."), NULL, does("append", "Dora."))
    got = run(Log(FOUR), scripted(*replies, "Text: Ben and Dora\nSources: 1, 2"), DYNAMIC)
    assert got.result.text == "Ben and Dora"
    assert [span.position for span in got.result.spans] == [2, 4]
    assert closing_of(got).notes == ("Ben left.", "Dora.")
    assert [action for _, action in got.moves()] == [
        *("move", "append", "move", "append"),
        *("answer", "answer"),
    ]
    assert got.result.calls == 5


def test_what_was_noted_is_shown_with_the_next_piece() -> None:
    got = run(
        Log(FOUR[:2]), scripted(does("append", "Ann."), does("append", "Ben."), ENDS), DYNAMIC
    )
    assert [content.notes for content in pieces_of(got)] == [(), ("Ann.",)]


def test_a_merge_stands_for_what_it_was_shown() -> None:
    replies = (does("append", "Ann."), does("append", "Ben."), does("merge", "Ann, Ben, Cid."))
    got = run(Log(FOUR[:3]), scripted(*replies, ENDS), DYNAMIC)
    assert closing_of(got).notes == ("Ann, Ben, Cid.",)
    assert {span.position for span in got.result.spans} >= {1, 2}


def test_a_merge_keeps_notes_that_had_no_room_beside_the_piece() -> None:
    long = "Ann came in and sat down there. " * 4
    replies = (does("append", long), does("append", "Ben."), does("merge", "Ben, Cid."))
    asked = request(BrowseOption.DYNAMIC, window_tokens=600)
    got = run(Log(FOUR[:3]), scripted(*replies, ENDS), asked)
    assert pieces_of(got)[2].notes == ("Ben.",)
    assert closing_of(got).notes == (long.strip(), "Ben, Cid.")


def test_an_answer_ends_the_walk_and_saves_calls() -> None:
    got = run(Log(FOUR), scripted(NULL, does("answer", "Ben", "[2] Ben left")), DYNAMIC)
    assert got.result.text == "Ben"
    assert got.result.calls == 2
    assert [span.text for span in got.result.spans] == ["Ben left"]


def test_aggregation_ends_the_walk_with_what_the_piece_adds() -> None:
    got = run(Log(FOUR), scripted(does("append", "Ann."), does("aggregate", "Ben."), ENDS), DYNAMIC)
    assert closing_of(got).notes == ("Ann.", "Ben.")
    assert got.result.calls == 3
    assert [action for _, action in got.moves()] == ["append", "aggregate", "aggregate", "answer"]
    # A model that chose a long answer is asked for one.
    assert closing_of(got).offers == (AGGREGATION,)
    assert "Write the full answer" in got.asks[-1].text


def test_retrieved_pieces_come_next_and_the_walk_goes_on_after_them() -> None:
    log = Log(FOUR, best=(4, 2))
    got = run(log, scripted(does("retrieve", "left"), NULL, NULL, NULL), DYNAMIC)
    assert [node for node, _ in got.moves()] == ["p.1", "p.4", "p.2", "p.3", "end"]
    assert got.events[0].targets == ("p.4", "p.2")
    assert got.events[0].text == "left"
    assert [one for one in log.lookups if isinstance(one, RankPieces)] == [
        RankPieces(query="left", count=4)
    ]


def test_a_piece_that_retrieval_names_where_it_was_asked_for_is_not_lost() -> None:
    log = Log(FOUR, best=(1,))
    got = run(log, scripted(does("retrieve", "came"), does("answer", "Ann")), DYNAMIC)
    assert got.result.text == "Ann"
    assert got.moves()[:2] == [("p.1", "retrieve"), ("p.1", "answer")]


def test_retrieval_is_offered_a_few_times() -> None:
    got = run(Log(FOUR, best=(1,)), scripted(*[does("retrieve", "x")] * 3, *[NULL] * 4), DYNAMIC)
    offered = [RETRIEVE in content.offers for content in pieces_of(got)]
    assert offered.count(True) == MAX_RETRIEVALS
    assert got.result.no_answer is NoAnswer.NOT_FOUND


def test_backward_begins_with_the_newest() -> None:
    asked = request(BrowseOption.DYNAMIC, order=ReadingOrder.BACKWARD)
    got = run(Log(FOUR), scripted(NULL, does("answer", "Cid")), asked)
    assert [node for node, _ in got.moves()] == ["p.4", "p.3", "end"]


def test_an_unreadable_reply_is_asked_for_again_with_its_fault() -> None:
    got = run(Log(FOUR[:1]), scripted("Ann", does("dance", "x"), does("answer", "Ann")), DYNAMIC)
    assert [event.attempt for event in got.events[:3]] == [1, 2, 3]
    assert [ask.attempt for ask in got.asks] == [0, 1, 2]
    assert "it names no action" in got.asks[1].text
    assert got.result.text == "Ann"


def test_a_piece_is_passed_after_three_unreadable_replies() -> None:
    got = run(Log(FOUR[:2]), scripted("a", "b", "c", does("answer", "Ben")), DYNAMIC)
    assert [node for node, _ in got.moves()] == ["p.1", "p.1", "p.1", "p.2", "end"]
    assert got.result.text == "Ben"


def test_a_model_that_makes_no_sense_has_no_answer() -> None:
    got = run(Log(FOUR), lambda _: "hm", DYNAMIC)
    assert got.result.no_answer is NoAnswer.UNREADABLE
    assert got.result.calls == 3 * len(FOUR)


def test_an_answer_that_makes_no_sense_is_none() -> None:
    got = run(Log(FOUR[:1]), scripted(does("append", "Ann."), "", "", ""), DYNAMIC)
    assert got.result.no_answer is NoAnswer.UNREADABLE
    assert [action for _, action in got.moves()] == ["append", *["invalid"] * 3, "none"]


def test_notes_that_do_not_answer_are_no_answer() -> None:
    got = run(Log(FOUR[:1]), scripted(does("append", "Ann."), "Text: null"), DYNAMIC)
    assert got.result.no_answer is NoAnswer.NOT_FOUND


def test_the_calls_for_the_answer_are_kept() -> None:
    asked = request(BrowseOption.DYNAMIC, max_calls=3)
    replies = (does("append", "Ann."), does("append", "Ben."), ENDS)
    got = run(Log(FOUR), scripted(*replies), asked)
    assert got.result.text == "Ben"
    assert got.result.calls == 3


def test_without_anything_known_the_calls_are_used_up() -> None:
    got = run(Log(FOUR), scripted(NULL, NULL), request(BrowseOption.DYNAMIC, max_calls=3))
    assert got.result.no_answer is NoAnswer.STEP_LIMIT
    assert got.result.calls == 2


#: The settings of section 4.4, by the actions that are allowed, with what each asks of three
#: pieces: how many asks each batch has, and which actions its prompts offer.
SETTINGS: dict[str, tuple[set[BrowseAction], list[int], tuple[BrowseAction, ...]]] = {
    "retrieve": ({RETRIEVE}, [1], ()),
    "merge": ({MERGE}, [1, 1, 1, 1], (MERGE,)),
    "append": ({APPEND}, [3, 1], (APPEND,)),
    "merge, move": ({MERGE, MOVE}, [1, 1, 1, 1], (MOVE, MERGE, ANSWER, AGGREGATION)),
    "append, move": ({APPEND, MOVE}, [1, 1, 1, 1], (MOVE, APPEND, ANSWER, AGGREGATION)),
    "retrieve, move": ({RETRIEVE, MOVE}, [1], (MOVE, ANSWER, AGGREGATION)),
    "all": (
        {RETRIEVE, MOVE, APPEND, MERGE},
        [1, 1, 1, 1],
        (MOVE, RETRIEVE, APPEND, MERGE, ANSWER, AGGREGATION),
    ),
}


def extracting(ask: ModelRequest) -> str:
    """Returns a model that takes something from every piece and answers at the end."""
    if not isinstance(content_of(ask), PieceContent):
        return ENDS
    offers = content_of(ask).offers
    if offers == (MOVE, ANSWER, AGGREGATION):
        return does("answer", "Ben")
    return does("merge" if MERGE in offers and APPEND not in offers else "append", "Ben.")


@pytest.mark.parametrize("name", SETTINGS)
def test_the_calls_of_each_setting_are_known(name: str) -> None:
    actions, batches, offers = SETTINGS[name]
    log = Log(FOUR[:3], best=(2, 1))
    got = run(log, extracting, request(actions=actions | CLOSING))
    assert got.batches == batches
    assert {content.offers for content in pieces_of(got)} == ({offers} if offers else set())
    assert got.result.text == "Ben"


def test_without_move_each_piece_must_yield_something() -> None:
    def model(ask: ModelRequest) -> str:
        assert 'text is ""' not in ask.segments[0].text or isinstance(content_of(ask), CloseContent)
        return NULL if ask.attempt == 0 else extracting(ask)

    got = run(Log(FOUR[:2]), model, request(actions={APPEND, ANSWER}))
    assert got.batches[:2] == [2, 2]
    assert [action for _, action in got.moves()][:4] == ["invalid", "invalid", "append", "append"]


@pytest.mark.parametrize(
    ("closing", "offers"),
    [
        ({ANSWER}, (ANSWER,)),
        ({AGGREGATION}, (AGGREGATION,)),
        (CLOSING, (ANSWER, AGGREGATION)),
    ],
)
def test_the_answer_is_of_a_kind_that_is_allowed(
    closing: Iterable[BrowseAction], offers: tuple[BrowseAction, ...]
) -> None:
    got = run(Log(FOUR[:1]), extracting, request(actions={APPEND, *closing}))
    assert closing_of(got).offers == offers


@pytest.mark.parametrize("actions", [{RETRIEVE}, {MERGE}, {APPEND}, {MERGE, MOVE}, {APPEND, MOVE}])
@pytest.mark.parametrize("ending", ["answer", "aggregate"])
def test_a_setting_of_the_paper_ends_as_the_model_chooses(
    actions: set[BrowseAction], ending: str
) -> None:
    def model(ask: ModelRequest) -> str:
        if isinstance(content_of(ask), PieceContent):
            return extracting(ask)
        return json.dumps({"action": ending, "text": "Ben", "sources": [1], "quotes": []})

    got = run(Log(FOUR[:3], best=(2, 1)), model, request(actions=actions | CLOSING))
    assert got.moves()[-2] == ("aggregation", ending)
    assert got.result.text == "Ben"
    assert got.asks[-1].reply_schema is not None
    assert got.asks[-1].reply_schema["properties"]["action"] == {
        "type": "string",
        "enum": ["answer", "aggregate"],
    }


def test_what_is_retrieved_may_be_passed_where_nothing_is_extracted() -> None:
    log = Log(FOUR, best=(4, 2, 3))
    asked = request(actions={RETRIEVE, MOVE} | CLOSING)
    got = run(log, scripted(does("move", ""), does("answer", "Ben")), asked)
    assert got.moves()[1:] == [("p.4", "move"), ("p.2", "answer"), ("end", "answer")]
    only = run(log, scripted(ENDS), request(actions={RETRIEVE} | CLOSING))
    assert not {ask.text for ask in got.asks} & {ask.text for ask in only.asks}
    long = run(log, scripted(does("aggregate", "Dora."), ENDS), asked)
    assert closing_of(long).offers == (AGGREGATION,)
    # Without the short way there is nothing to choose, and all of them are read.
    noted = run(
        log,
        scripted(says("Dora."), says("Ben."), NULL, ENDS),
        request(actions={RETRIEVE, MOVE, AGGREGATION}),
    )
    assert closing_of(noted).notes == ("Dora.", "Ben.")


def test_a_piece_is_looked_up_when_it_is_read_and_not_before() -> None:
    log = Log(FOUR)
    run(log, scripted(does("answer", "Ann")), DYNAMIC)
    assert log.lookups == [ReadPiece(number=1)]
