"""The options of section 4.2: what each asks, and what comes of it."""

from service.domain.answers.browse.pieces import Span
from service.domain.answers.browse.spec import BrowseOption, ReadingOrder
from service.domain.answers.trajectory import NoAnswer
from tests.support.contents import CloseContent, content_of
from tests.unit.answers.browse.support import (
    ANSWER,
    APPEND,
    CLOSING,
    MOVE,
    NULL,
    RETRIEVE,
    Log,
    does,
    request,
    run,
    says,
    scripted,
)

THREE = ("Ann came in.", "Ben left at dawn.", "Cid slept.")


def test_retrieved_pieces_that_fit_are_read_in_one_prompt() -> None:
    log = Log(THREE, best=(2, 3))
    got = run(log, scripted(says("Ben", '[2] "Ben left"')), request(BrowseOption.RANK))
    assert got.result.text == "Ben"
    assert got.result.spans == (
        Span(position=2, from_character=0, to_character=8, text="Ben left"),
    )
    assert got.result.calls == len(got.asks) == 1
    assert isinstance(content_of(got.asks[0]), CloseContent)
    assert content_of(got.asks[0]).parts == ((2, THREE[1]), (3, THREE[2]))
    assert got.moves() == [
        ("retrieval", "none"),
        ("p.2", "none"),
        ("p.3", "none"),
        ("aggregation", "answer"),
        ("end", "answer"),
    ]
    assert got.events[0].shown == ("p.2", "p.3")
    assert [event.from_position for event in got.events[1:3]] == [2, 3]


def test_retrieved_pieces_that_do_not_fit_are_extracted_from_at_once() -> None:
    long = [f"{text} " + "word " * 60 for text in THREE]
    replies = (says("it was Ben", "[2] Ben left"), NULL, NULL, "Text: Ben\nSources: 1")
    asked = request(BrowseOption.RANK, window_tokens=600)
    got = run(Log(long, best=(2, 3, 1)), scripted(*replies), asked)
    assert got.batches == [3, 1]
    assert got.result.text == "Ben"
    assert [span.text for span in got.result.spans] == ["Ben left"]
    assert [event.action.value for event in got.events[1:3]] == ["append", "move"]


def test_a_scan_ends_at_the_first_answer() -> None:
    got = run(Log(THREE), scripted(NULL, says("Ben", "[2] Ben left")), request(BrowseOption.SCAN))
    assert got.result.text == "Ben"
    assert got.result.calls == 2
    assert got.moves() == [("p.1", "move"), ("p.2", "answer"), ("end", "answer")]


def test_a_scan_reads_backward_and_may_find_nothing() -> None:
    asked = request(BrowseOption.SCAN, order=ReadingOrder.BACKWARD)
    got = run(Log(THREE), scripted(NULL, NULL, NULL), asked)
    assert got.result.no_answer is NoAnswer.NOT_FOUND
    assert [event.node_id for event in got.events] == ["p.3", "p.2", "p.1", ""]


def test_retrieval_that_may_pass_pieces_ends_at_the_first_answer() -> None:
    long = [f"{text} " + "word " * 60 for text in THREE]
    asked = request(BrowseOption.RANK, {RETRIEVE, MOVE, *CLOSING}, window_tokens=600)
    got = run(Log(long, best=(3, 2, 1)), scripted(NULL, does("answer", "Ben")), asked)
    assert got.moves()[1:] == [("p.3", "move"), ("p.2", "answer"), ("end", "answer")]


def test_each_by_itself_asks_all_at_once() -> None:
    asked = request(BrowseOption.INDEPENDENT, {APPEND, MOVE, ANSWER})
    got = run(Log(THREE), scripted(NULL, says("Ben"), NULL, "Text: Ben\nSources: 1"), asked)
    assert got.batches == [3, 1]
    assert got.result.text == "Ben"
    # It quoted nothing: the passage that fits best is cited.
    assert got.result.spans[0].position == 2


def test_an_empty_log_has_no_answer() -> None:
    got = run(Log(()), scripted(), request())
    assert got.result.no_answer is NoAnswer.EMPTY
    assert got.moves() == [("end", "none")]
