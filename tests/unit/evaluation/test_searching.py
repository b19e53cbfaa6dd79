"""How well evidence is found, against values worked by hand, and runs that hide no failure."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

import palimpsest
from evaluation.datasets import Document
from evaluation.indexing import Indexes
from evaluation.intervals import interval
from evaluation.searching import (
    FOUND,
    MEASURES,
    Searched,
    SearchRun,
    SearchWay,
    against_better_part,
    summarize,
    with_evidence,
)
from evaluation.sessions import Place
from evaluation.strategies import Failed
from palimpsest import FailedPrecondition
from palimpsest.v1 import chunks_pb2, session_service_pb2
from tests.unit.evaluation.results import document


def searched(found: Sequence[int], evidence: Sequence[int] = (3, 4), **changes: Any) -> Searched:
    held = {"way": SearchWay.WORDS, "document": "d", "number": 1, "seconds": 1.0, **changes}
    return Searched(found=tuple(found), evidence=tuple(evidence), **held)


def test_recall_is_of_the_best_and_the_first_hit_counts() -> None:
    one = searched([9, 3, 8, 7, 4])
    assert [one.recall_at(count) for count in (1, 2, 5)] == [0.0, 0.5, 1.0]
    assert one.reciprocal_rank == 0.5
    assert searched([1, 2]).reciprocal_rank == 0.0
    assert searched([4, 3]).reciprocal_rank == 1.0


def test_means_are_over_all_and_a_failure_counts_as_nothing() -> None:
    found = summarize(
        SearchWay.WORDS,
        [
            searched([3, 4], seconds=2.0),
            searched([1, 3], number=2, seconds=4.0),
            searched([], number=3, failure="it broke", seconds=60.0),
            searched([], number=4, seconds=3.0),
            searched([3, 4], way=SearchWay.HYBRID),
        ],
    )
    assert (found.questions, found.failed) == (4, 1)
    assert len(found.recall) == FOUND
    assert found.recall[:2] == ((0.5) / 4, (1.0 + 0.5) / 4)
    assert found.mrr == (1.0 + 0.5) / 4
    assert found.seconds == 3.0
    broken = summarize(SearchWay.HYBRID, [searched([], way=SearchWay.HYBRID, failure="x")])
    assert (broken.seconds, broken.mrr) == (None, 0.0)


def test_the_interval_of_a_mean() -> None:
    found = summarize(SearchWay.WORDS, [searched([3, 4], number=at) for at in range(9)])
    assert found.intervals["recall@1"] == (0.5, 0.5)
    assert found.mean("recall@5") == found.recall[4] == 1.0
    assert found.mean("mrr") == found.mrr
    low, high = interval([0.0, 1.0] * 50)
    assert (low, high) == interval([0.0, 1.0] * 50)
    # The normal approximation: 0.5 and 1.96 of 0.05.
    assert (low, high) == pytest.approx((0.402, 0.598), abs=0.02)


def test_hybrid_is_compared_with_its_better_part() -> None:
    words = [searched([3, 1], number=1), searched([3, 4], number=2)]
    vectors = [searched([1, 2], number=at, way=SearchWay.VECTORS) for at in (1, 2)]
    hybrid = [searched([3, 4], number=at, way=SearchWay.HYBRID) for at in (1, 2)]
    by = {one.measure: one for one in against_better_part([*words, *vectors, *hybrid])}
    assert set(by) == set(MEASURES)
    assert by["recall@5"].part is SearchWay.WORDS
    assert (by["recall@5"].mean, by["recall@5"].low, by["recall@5"].high) == (0.25, 0.0, 0.5)
    assert by["recall@1"].mean == by["mrr"].mean == 0.0
    assert against_better_part([*words, *hybrid]) == ()


def test_only_questions_with_evidence_are_searched_for() -> None:
    known, unknown = document("a", 2, evidence=frozenset({1})), document("b", 1)
    assert [len(one.questions) for one in with_evidence([known, unknown])] == [2, 0]


class Service:
    """Finds the second chunk first; refuses vectors."""

    address = "here"
    channel = None

    def __init__(self) -> None:
        self.asked: list[session_service_pb2.SearchChunksRequest] = []

    async def call(self, _: object, request: Any, timeout: float) -> Any:
        self.asked.append(request)
        if request.mode == session_service_pb2.SEARCH_MODE_VECTORS:
            raise FailedPrecondition("there are no vectors")
        results = [
            session_service_pb2.SearchChunksResponse.Result(
                chunk=chunks_pb2.Chunk(position=position), rank=rank
            )
            for rank, position in enumerate((2, 1), start=1)
        ]
        return session_service_pb2.SearchChunksResponse(results=results)


class Stub:
    """In place of the stub, which wants a channel."""

    def __init__(self, _: object) -> None:
        self.SearchChunks = None


async def plain(one: Document, ways: Sequence[SearchWay]) -> Any:
    """Finds the first chunk, and the second for the second question."""
    assert ways == [SearchWay.STEMMED]
    return {SearchWay.STEMMED: [[at] for at in range(1, len(one.questions) + 1)]}


async def go(
    monkeypatch: pytest.MonkeyPatch, documents: Sequence[Document], *, broken: str = ""
) -> tuple[list[Searched], Service]:
    service = Service()
    client = cast(palimpsest.Client, service)

    async def opened(_: Place, one: Document) -> Any:
        return SimpleNamespace(id=one.id)

    async def wait(_: Indexes, session: str) -> None:
        if broken:
            raise Failed(broken)

    monkeypatch.setattr("evaluation.searching.session_service_pb2_grpc.SessionServiceStub", Stub)
    monkeypatch.setattr(Place, "opened", opened)
    monkeypatch.setattr(Indexes, "wait", wait)
    place = Place(client=client, session_of=lambda one: one.id, timeout_seconds=60.0)
    heard: list[Searched] = []
    run = SearchRun(
        place,
        Indexes(client, wants_vectors=False, timeout_seconds=60.0),
        (SearchWay.WORDS, SearchWay.VECTORS, SearchWay.STEMMED, SearchWay.RERANKED),
        concurrency=2,
        on_result=heard.append,
        rank=plain,
    )
    await run.go(documents)
    return heard, service


async def test_every_question_is_searched_for_in_every_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    documents = [document("a", 2, evidence=frozenset({1})), document("b", 1)]
    heard, service = await go(monkeypatch, with_evidence(documents))
    assert (len(heard), len(service.asked)) == (8, 6)
    assert {(one.query, one.limit) for one in service.asked} == {("1?", 10), ("2?", 10)}
    assert [one.rerank for one in service.asked[:3]] == [False, False, True]
    by = {one.way: one for one in heard if one.number == 1}
    assert by[SearchWay.WORDS].found == (2, 1)
    assert by[SearchWay.RERANKED].reciprocal_rank == 0.5
    assert by[SearchWay.VECTORS].failure == "there are no vectors"
    assert [one.found for one in heard if one.way is SearchWay.STEMMED] == [(1,), (2,)]
    assert summarize(SearchWay.STEMMED, heard).seconds is None


async def test_a_document_without_an_index_fails_its_questions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    documents = [document("a", 2, evidence=frozenset({1}))]
    heard, service = await go(monkeypatch, documents, broken="it did not get on")
    assert not service.asked
    assert {one.failure for one in heard} == {"it did not get on"}
    assert len(heard) == 8
