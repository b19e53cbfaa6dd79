"""Task understanding, by itself and before browsing."""

import json
from typing import Any

import pytest

from service.domain.answers.browse.pieces import RankPieces
from service.domain.answers.browse.prompts import BrowsePrompts
from service.domain.answers.browse.spec import (
    ALL_ACTIONS,
    BrowseAction,
    BrowseOption,
    QuerySubject,
    ReadingOrder,
    Understanding,
)
from service.domain.answers.browse.understanding import understand
from service.domain.answers.trajectory import EventKind
from service.domain.prompting.ends import End
from service.domain.prompting.fitting import TextTooLong
from service.domain.prompting.flows import ModelReply
from service.domain.prompting.tokens import estimate_tokens
from tests.support.contents import CloseContent, PieceContent, UnderstandContent, content_of
from tests.unit.answers.browse.support import KEY, NULL, Log, ended, request, run, says, scripted

OPTIONS = frozenset(
    {BrowseOption.RANK, BrowseOption.CARRY, BrowseOption.INDEPENDENT, BrowseOption.SCAN}
)
LISTING = "Subject: overview\nOption: independent\nOrder: forward\nQuery: Name each who left."
THREE = ("Ann came in.", "Ben left at dawn.", "Cid slept.")


def understood(*replies: str, **changes: Any) -> tuple[Understanding, int]:
    """Returns what comes of these replies, and how many of them were asked for."""
    settled: dict[str, Any] = {
        "query": "Who left?",
        "marker_key": KEY,
        "window_tokens": 4096,
        "count": estimate_tokens,
    }
    allowed = changes.pop("allowed", OPTIONS)
    flow = understand(BrowsePrompts(**settled | changes), allowed)
    next(flow)
    for number, reply in enumerate(replies, 1):
        try:
            flow.send([ModelReply(text=reply, model="m")])
        except StopIteration as end:
            return end.value.result, number
    raise AssertionError("it goes on asking")


@pytest.mark.parametrize(
    "reply",
    [
        LISTING,
        "**Subject:** Overview\n**Option:** [3]\nOrder = forward\n- Query: Name each who left.",
        '{"subject": "overview", "option": "independent", "order": "forward",'
        ' "query": "Name each who left."}',
        "<think>Option: rank\n</think>\n" + LISTING,
    ],
)
def test_a_query_is_understood(reply: str) -> None:
    result, calls = understood(reply)
    assert result == Understanding(
        subject=QuerySubject.OVERVIEW,
        option=BrowseOption.INDEPENDENT,
        order=ReadingOrder.FORWARD,
        query="Name each who left.",
    )
    assert calls == 1


def test_code_is_read_from_near_to_far() -> None:
    result, _ = understood("Subject: code\nOption: scan")
    assert result.order is ReadingOrder.BACKWARD
    assert result.query == "Who left?"


CODE = "Complete this code.\ndef feed(fox):\n    bowl = find_bowl(fox)\n    bowl.fill(MILK)"


def test_all_of_a_question_is_searched_for() -> None:
    """Searches by all of a question with code, whose first line says too little."""
    log = Log(THREE, best=(2,))
    asked = request(BrowseOption.RANK, ALL_ACTIONS)
    replies = ("Subject: code\nQuery: Complete this code.", says("Ben"))
    run(log, scripted(*replies), asked, query=CODE)
    (searched,) = [one.query for one in log.lookups if isinstance(one, RankPieces)]
    assert searched == CODE + "\nComplete this code."
    log.lookups.clear()
    echoed = json.dumps({"subject": "code", "order": "backward", "query": CODE})
    run(log, scripted(echoed, says("Ben")), asked, query=CODE)
    (searched,) = [one.query for one in log.lookups if isinstance(one, RankPieces)]
    assert searched == CODE


def test_a_query_of_several_lines_is_read_to_its_end() -> None:
    result, _ = understood(
        "Query: Name each\nwho left,\nand when.\nOption: independent\nOrder: forward"
    )
    assert result.query == "Name each who left, and when."
    assert result.option is BrowseOption.INDEPENDENT


def test_a_query_that_is_refused_is_read_as_a_fact() -> None:
    prompts = BrowsePrompts(
        query="Who left?", window_tokens=4096, marker_key=KEY, count=estimate_tokens
    )
    flow = understand(prompts, OPTIONS)
    next(flow)
    with pytest.raises(StopIteration) as end:
        flow.send([ended(End.REFUSAL, "", "no")])
    found = end.value.value.result
    assert (found.subject, found.option) == (QuerySubject.FACT, BrowseOption.RANK)


def test_a_query_that_became_too_long_stays_as_it_was() -> None:
    assert understood(f"Option: scan\nQuery: {'long ' * 500}")[0].query == "Who left?"


def test_an_option_that_is_not_allowed_is_asked_for_again() -> None:
    allowed = frozenset({BrowseOption.SCAN, BrowseOption.CARRY})
    assert understood("Option: rank", "Option: carry", allowed=allowed)[1] == 2


def test_after_three_unreadable_replies_it_is_a_fact() -> None:
    result, calls = understood("", "hm", "Option: 9")
    assert (result.subject, result.option, calls) == (QuerySubject.FACT, BrowseOption.RANK, 3)


def test_with_one_option_none_is_asked_for() -> None:
    only = frozenset({BrowseOption.CARRY})
    result, _ = understood("Query: Name each.", allowed=only)
    assert (result.option, result.query) == (BrowseOption.CARRY, "Name each.")


def test_a_query_that_leaves_no_room_is_refused() -> None:
    with pytest.raises(TextTooLong, match="too long"):
        understood("", query="word " * 5000)


def test_browsing_begins_with_it_and_reads_as_it_says() -> None:
    asked = request(BrowseOption.AUTO, ALL_ACTIONS)
    replies = (LISTING, NULL, says("Ben"), NULL, "Text: Ben\nSources: 1")
    got = run(Log(THREE), scripted(*replies), asked)
    assert got.batches == [1, 3, 1]
    first = got.events[0]
    assert (first.kind, first.targets) == (EventKind.UNDERSTANDING, ("independent",))
    assert (first.text, first.reasoning) == ("Name each who left.", "overview, forward")
    assert isinstance(content_of(got.asks[1]), PieceContent)
    assert content_of(got.asks[1]).look_for == "Name each who left."
    assert "Name each who left." in got.asks[1].text
    closing = content_of(got.asks[-1])
    assert isinstance(closing, CloseContent)
    # What concerns the whole is answered at length.
    assert closing.offers == (BrowseAction.AGGREGATION,)
    assert got.result.calls == 5


def test_an_option_that_was_asked_for_stays() -> None:
    asked = request(BrowseOption.SCAN, ALL_ACTIONS)
    got = run(Log(THREE), scripted("Order: backward\nQuery: x", says("Cid")), asked)
    assert isinstance(content_of(got.asks[0]), UnderstandContent)
    assert content_of(got.asks[0]).options == (), "nothing is to be chosen"
    assert [event.node_id for event in got.events] == ["", "p.3", ""]


def test_what_was_understood_before_is_not_asked_again() -> None:
    asked = request(BrowseOption.SCAN, ALL_ACTIONS, rewritten_query="Name who left.")
    got = run(Log(THREE), scripted(says("Cid")), asked)
    assert got.result.calls == 1
    assert "Name who left." in got.asks[0].text


def test_calls_that_reading_needs_are_not_spent_on_it() -> None:
    asked = request(BrowseOption.AUTO, ALL_ACTIONS, max_calls=2)
    got = run(Log(THREE[:1]), scripted(says("Ann"), "Text: Ann\nSources: 1"), asked)
    assert not any(isinstance(content_of(ask), UnderstandContent) for ask in got.asks)


def test_a_query_that_leaves_no_room_costs_no_call() -> None:
    asked = request(BrowseOption.AUTO, ALL_ACTIONS)
    with pytest.raises(TextTooLong, match="the query has 3750 tokens"):
        run(Log(THREE), scripted(), asked, query="word " * 3000)
