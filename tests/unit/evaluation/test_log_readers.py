"""Strategies that read the log: their requests by name, and their results."""

from collections.abc import Sequence
from typing import Any, cast

import pytest

import palimpsest
from evaluation import log_readers
from evaluation.asking import Asked, request_of
from evaluation.datasets import Question
from evaluation.indexing import Indexes
from evaluation.log_readers import ACTIONS, NAMES, BrowseSettings, LogStrategy
from evaluation.sessions import Place
from evaluation.strategies import (
    ALL,
    BASELINES,
    FIGURE_3,
    Outcome,
    Prepared,
    Spent,
    StrategyName,
)
from palimpsest import TrajectoryEvent
from palimpsest._convert import value_of
from palimpsest.v1 import answer_service_pb2, common_pb2
from palimpsest.v1.answer_service_pb2 import Citation
from palimpsest.v1.common_pb2 import CharacterRange, PositionRange
from service.domain.answers.browse.spec import ALL_ACTIONS, BrowseAction, BrowseRequest
from tests.unit.evaluation.results import document

Answer = answer_service_pb2.Answer
Event = answer_service_pb2.TrajectoryEvent


class Service:
    """Records requests, and gives a scripted answer."""

    def __init__(self, answer: Answer, events: Sequence[Event] = ()) -> None:
        self.answer = answer
        self.events = [value_of(TrajectoryEvent, one) for one in events]
        self.asked: list[answer_service_pb2.AskRequest] = []

    async def ask(
        self, _: object, request: answer_service_pb2.AskRequest, timeout_seconds: float
    ) -> Asked:
        assert timeout_seconds == 60.0
        self.asked.append(request)
        return Asked(answer=self.answer, events=self.events)


async def outcome(
    monkeypatch: pytest.MonkeyPatch,
    name: StrategyName,
    service: Service,
    settings: BrowseSettings | None = None,
    *,
    uncompressed: frozenset[int] = frozenset(),
) -> Outcome:
    monkeypatch.setattr(log_readers, "ask", service.ask)
    client = cast(palimpsest.Client, None)
    place = Place(client=client, session_of=lambda one: one.id, timeout_seconds=60.0)
    indexes = Indexes(client, wants_vectors=False, timeout_seconds=60.0)
    strategy = LogStrategy(name, place, settings or BrowseSettings(), indexes)
    prepared = Prepared(session="s", spent=Spent(), state=uncompressed)
    asked = document("d", 1)
    return await strategy.ask(asked, prepared, asked.questions[0])


def complete(**fields: Any) -> Answer:
    return Answer(state=common_pb2.OPERATION_STATE_DONE, text="1", model="m", id="a", **fields)


def piece(number: int, first: int, last: int) -> Event:
    return Event(
        kind=Event.KIND_PIECE, node=f"p.{number}", positions=PositionRange(first=first, last=last)
    )


@pytest.mark.parametrize("name", sorted(NAMES - {"whole", "auto"}))
async def test_every_way_to_browse_can_be_asked_for(
    monkeypatch: pytest.MonkeyPatch, name: StrategyName
) -> None:
    service = Service(complete(reader=answer_service_pb2.READER_DCISO))
    settings = BrowseSettings(window_tokens=1000, pieces=3, max_calls=9, rerank=True, model="p/m")
    await outcome(monkeypatch, name, service, settings)
    (request,) = service.asked
    assert (request.reader, request.memory, request.model) == (
        answer_service_pb2.READER_DCISO,
        "",
        "p/m",
    )
    sent = request.browsing
    assert (sent.window_tokens, sent.pieces, sent.max_calls, sent.rerank) == (1000, 3, 9, True)
    actions = {name for name, number in ACTIONS.items() if number in sent.actions}
    assert not BrowseRequest(actions=frozenset(map(BrowseAction, actions)) or ALL_ACTIONS).problem()


async def test_ablations_have_the_actions_of_the_paper(monkeypatch: pytest.MonkeyPatch) -> None:
    browse = answer_service_pb2.BrowsingOptions
    closing = {browse.ACTION_ANSWER, browse.ACTION_AGGREGATION}
    for name, wanted in (
        (StrategyName.RETRIEVE_ONLY, {browse.ACTION_RETRIEVE}),
        (StrategyName.APPEND_MOVE, {browse.ACTION_APPEND, browse.ACTION_MOVE}),
    ):
        service = Service(complete(reader=answer_service_pb2.READER_DCISO))
        await outcome(monkeypatch, name, service, BrowseSettings(actions=("merge",)))
        assert set(service.asked[0].browsing.actions) == wanted | closing
    service = Service(complete(reader=answer_service_pb2.READER_DCISO))
    settings = BrowseSettings(actions=("merge", "answer"))
    await outcome(monkeypatch, StrategyName.DCISO, service, settings)
    assert set(service.asked[0].browsing.actions) == {browse.ACTION_MERGE, browse.ACTION_ANSWER}


async def test_reading_whole_shows_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    cited = Citation(position=2, characters=CharacterRange(start=1, end=4))
    service = Service(complete(reader=answer_service_pb2.READER_WHOLE, citations=[cited]))
    found = await outcome(monkeypatch, StrategyName.WHOLE, service)
    assert not service.asked[0].HasField("browsing")
    assert found.seen == frozenset({1, 2})
    assert found.cited == frozenset({2})
    assert found.spans is not None
    (span,) = found.spans
    assert (span.position, span.from_character, span.to_character) == (2, 1, 4)
    assert (found.pieces, found.chosen) == (None, "")


async def test_browsing_shows_the_pieces_and_cites_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    understood = Event(kind=Event.KIND_UNDERSTANDING, positions=PositionRange(first=1, last=9))
    cited = Citation(position=2, positions=PositionRange(first=2, last=4), node="p.2")
    service = Service(
        complete(reader=answer_service_pb2.READER_DCISO, citations=[cited]),
        [understood, piece(2, 2, 4), piece(2, 2, 4), piece(3, 7, 7)],
    )
    found = await outcome(monkeypatch, StrategyName.DCISO_SCAN, service)
    assert found.seen == frozenset({2, 3, 4, 7})
    assert found.cited == frozenset({2})
    assert found.spans == ()
    assert found.pieces == 2, "a piece that was asked about twice is one"


def together(*pieces: str) -> Event:
    return Event(kind=Event.KIND_AGGREGATION, action=Event.ACTION_ANSWER, shown=pieces)


async def test_pieces_that_one_prompt_had_are_read_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    cited = Citation(position=5, positions=PositionRange(first=5, last=6), node="p.3")
    answer = complete(reader=answer_service_pb2.READER_DCISO, citations=[cited])
    service = Service(answer, [together("p.3")])
    found = await outcome(monkeypatch, StrategyName.DCISO_RANK, service)
    assert (found.seen, found.pieces) == (frozenset({5, 6}), 1)
    # The positions of a piece that no citation is from are not known.
    service = Service(answer, [together("p.3", "p.1")])
    found = await outcome(monkeypatch, StrategyName.DCISO_RANK, service)
    assert (found.seen, found.pieces) == (None, 2)
    service = Service(answer, [piece(1, 1, 2), together("p.3", "p.1")])
    found = await outcome(monkeypatch, StrategyName.DCISO_RANK, service)
    assert (found.seen, found.pieces) == (frozenset({1, 2, 5, 6}), 2)


@pytest.mark.parametrize(
    ("reader", "strategy", "chosen", "seen", "cited"),
    [
        ("WHOLE", "UNSPECIFIED", "whole", {1, 2}, {1}),
        ("PRISM", "UNSPECIFIED", "prism", None, {1}),
        ("PCC", "UNSPECIFIED", "pcc", {2}, {1, 2, 3}),
        ("MEMWALKER", "UNSPECIFIED", "memwalker", {5}, {1, 2, 3}),
        ("DCISO", "SCAN", "dciso-scan", {5}, {1}),
    ],
)
async def test_what_was_read_is_as_the_choice_reads(
    monkeypatch: pytest.MonkeyPatch,
    reader: str,
    strategy: str,
    chosen: str,
    seen: set[int] | None,
    cited: set[int],
) -> None:
    choice = Answer.Choice(
        reader=answer_service_pb2.Reader.Value(f"READER_{reader}"),
        strategy=answer_service_pb2.BrowsingOptions.Strategy.Value(f"STRATEGY_{strategy}"),
    )
    looks = {
        "MEMWALKER": [Event(kind=Event.KIND_LEAF, positions=PositionRange(first=5, last=5))],
        "DCISO": [piece(1, 5, 5)],
    }
    service = Service(
        complete(
            reader=answer_service_pb2.READER_AUTO,
            choice=choice,
            citations=[Citation(position=1, positions=PositionRange(first=1, last=3))],
        ),
        looks.get(reader, []),
    )
    found = await outcome(monkeypatch, StrategyName.AUTO, service, uncompressed=frozenset({2}))
    assert found.chosen == chosen
    assert found.seen == (None if seen is None else frozenset(seen))
    assert found.cited == frozenset(cited)
    assert found.pieces == (1 if reader == "DCISO" else None)


async def test_no_answer_is_an_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = complete(
        reader=answer_service_pb2.READER_WHOLE, no_answer=answer_service_pb2.NO_ANSWER_NOT_FOUND
    )
    found = await outcome(monkeypatch, StrategyName.WHOLE, Service(answer))
    assert (found.text, found.no_answer) == ("", "not_found")


def test_options_are_those_of_the_question() -> None:
    question = Question(number=1, text="Who?", golds=("Ann",), options=("Ann", "Ben"))
    asked = request_of(question, session="s")
    assert (asked.session, asked.query, list(asked.options)) == ("s", "Who?", ["Ann", "Ben"])


@pytest.mark.parametrize("guessed", [True, False])
async def test_a_guess_is_called_one(monkeypatch: pytest.MonkeyPatch, guessed: bool) -> None:
    answer = complete(reader=answer_service_pb2.READER_DCISO, guessed=guessed)
    found = await outcome(monkeypatch, StrategyName.DCISO, Service(answer))
    assert (found.text, found.guessed) == ("1", guessed)


def test_every_strategy_is_in_a_group() -> None:
    assert set(ALL) | set(FIGURE_3) == set(StrategyName)
    assert set(NAMES).isdisjoint(BASELINES)
