"""The offline model browses by the query's words."""

import pytest

from service.domain.answers.browse.spec import (
    ALL_ACTIONS,
    BrowseAction,
    BrowseOption,
    BrowseRequest,
    ReadingOrder,
)
from service.domain.answers.trajectory import EventKind, NoAnswer
from service.llm.offline.model import complete
from tests.unit.answers.browse.support import CLOSING, Log, Run, request, run

STORY = (
    "The sea was grey. A net hung on the wall of the old house.",
    "Ann fed the fox at night. It slept in the barn.",
    "Ben mended the old net. He sang of the sea.",
    "Ann fed two hens at noon. The fox looked on.",
)


def browsed(query: str, asked: BrowseRequest, best: tuple[int, ...] = ()) -> Run:
    return run(Log(STORY, best=best), complete, asked, query=query)


def test_left_to_choose_it_reads_the_best_pieces() -> None:
    got = browsed("Who fed the fox?", request(BrowseOption.AUTO, ALL_ACTIONS), best=(2, 4))
    first = got.events[0]
    assert (first.kind, first.reasoning) == (EventKind.UNDERSTANDING, "fact, forward")
    assert first.targets == ("rank",)


@pytest.mark.parametrize("option", list(BrowseOption))
def test_every_option_finds_the_sentence(option: BrowseOption) -> None:
    got = browsed("Who mended the net?", request(option), best=(3, 1))
    assert "Ben mended the old net." in got.result.text
    assert 3 in {span.position for span in got.result.spans}


def test_a_scan_passes_what_has_no_words_of_it() -> None:
    got = browsed("Who mended the net?", request(BrowseOption.SCAN, order=ReadingOrder.BACKWARD))
    assert got.moves() == [("p.4", "move"), ("p.3", "answer"), ("end", "answer")]


def test_it_searches_once_and_reads_what_was_found() -> None:
    got = browsed("Who mended the net?", request(BrowseOption.DYNAMIC), best=(3,))
    assert got.moves()[:2] == [("p.1", "retrieve"), ("p.3", "answer")]


def test_a_list_has_what_all_pieces_say() -> None:
    asked = request(
        BrowseOption.INDEPENDENT, {BrowseAction.APPEND, *CLOSING} - {BrowseAction.ANSWER}
    )
    got = browsed("List whom Ann fed.", asked)
    assert "Ann fed the fox at night." in got.result.text
    assert "Ann fed two hens at noon." in got.result.text
    assert {2, 4} <= {span.position for span in got.result.spans}


def test_what_no_piece_says_has_no_answer() -> None:
    got = browsed("What is a volcano?", request(BrowseOption.INDEPENDENT))
    assert got.result.no_answer is NoAnswer.NOT_FOUND
