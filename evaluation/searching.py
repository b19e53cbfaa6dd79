"""How well the search of the service finds the evidence of questions."""

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial

import palimpsest
from evaluation.datasets import Document
from evaluation.indexing import Indexes
from evaluation.intervals import interval
from evaluation.measures import recall
from evaluation.sessions import Place
from evaluation.strategies import Failed
from palimpsest.v1 import session_service_pb2, session_service_pb2_grpc

#: How many of the best chunks found are looked at.
RECALLED = (1, 5, 10)
FOUND = max(RECALLED)


class SearchWay(StrEnum):
    """By what is searched, in the order in which it is compared."""

    WORDS = "words"
    VECTORS = "vectors"
    HYBRID = "hybrid"
    #: Plain ways, in the process of the evaluation: see `evaluation.search_baselines`.
    BM25S = "bm25s"
    STEMMED = "stemmed"
    COSINE = "cosine"
    RRF = "rrf"
    #: Words, and vectors where there are any, then ordered by the model.
    RERANKED = "reranked"


_MODES: Mapping[SearchWay, "session_service_pb2.SearchMode.ValueType"] = {
    SearchWay.WORDS: session_service_pb2.SEARCH_MODE_WORDS,
    SearchWay.VECTORS: session_service_pb2.SEARCH_MODE_VECTORS,
    SearchWay.HYBRID: session_service_pb2.SEARCH_MODE_HYBRID,
    SearchWay.RERANKED: session_service_pb2.SEARCH_MODE_UNSPECIFIED,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Searched:
    """A question that was searched for in one way."""

    way: SearchWay
    document: str
    #: The question's number within its document.
    number: int
    evidence: tuple[int, ...]
    #: Positions, best first, at most FOUND.
    found: tuple[int, ...] = ()
    #: Wall time, with that of others that were under way.
    seconds: float = 0.0
    #: Why it failed, in a sentence; empty when it did not.
    failure: str = ""

    def recall_at(self, count: int) -> float:
        """Returns the share of the evidence among the `count` best; 0 when it failed."""
        return recall(frozenset(self.evidence), self.found[:count]) or 0.0

    @property
    def reciprocal_rank(self) -> float:
        """One divided by the rank of the first chunk of the evidence; 0 without one."""
        ranks = (rank for rank, one in enumerate(self.found, start=1) if one in self.evidence)
        return 1 / next(ranks, float("inf"))


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchSummary:
    """A way's line. Means are over all questions; one that failed counts as 0."""

    way: SearchWay
    questions: int
    failed: int
    #: Evidence recall by the number of the best chunks that are looked at, 1 to FOUND.
    recall: tuple[float, ...]
    #: The mean reciprocal rank of the first chunk of the evidence.
    mrr: float
    #: The median of those that did not fail; None without one, and of plain ways.
    seconds: float | None
    #: The 95 % interval of each of MEASURES, by its name.
    intervals: Mapping[str, tuple[float, float]]

    def mean(self, measure: str) -> float:
        """Returns the mean of one of MEASURES."""
        return self.mrr if measure == "mrr" else self.recall[int(measure.partition("@")[2]) - 1]


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """By how much HYBRID finds more than the better one of its two parts."""

    #: The name in MEASURES.
    measure: str
    #: WORDS or VECTORS: the one with the higher mean.
    part: SearchWay
    #: The mean over the questions, and its 95 % interval; below 0 where the part finds more.
    mean: float
    low: float
    high: float


#: What is compared, by its name: a figure from 0 to 1 of one search.
MEASURES: Mapping[str, Callable[[Searched], float]] = {
    **{f"recall@{count}": partial(Searched.recall_at, count=count) for count in RECALLED},
    "mrr": lambda one: one.reciprocal_rank,
}


def with_evidence(documents: Sequence[Document]) -> list[Document]:
    """Only the questions that have evidence can be searched for."""
    return [
        replace(one, questions=tuple(asked for asked in one.questions if asked.evidence))
        for one in documents
    ]


def summarize(way: SearchWay, results: Collection[Searched]) -> SearchSummary:
    """Returns the line of a way that has results."""
    mine = [one for one in results if one.way is way]
    seconds = [one.seconds for one in mine if way in _MODES and not one.failure]
    return SearchSummary(
        way=way,
        questions=len(mine),
        failed=sum(bool(one.failure) for one in mine),
        recall=tuple(
            statistics.fmean(one.recall_at(count) for one in mine) for count in range(1, FOUND + 1)
        ),
        mrr=statistics.fmean(one.reciprocal_rank for one in mine),
        seconds=statistics.median(seconds) if seconds else None,
        intervals={
            name: interval([figure(one) for one in mine]) for name, figure in MEASURES.items()
        },
    )


def against_better_part(results: Collection[Searched]) -> Sequence[Difference]:
    """Compares HYBRID with WORDS or VECTORS by each measure; nothing unless all three have results.

    The figures of each question are paired: the interval is that of their differences.
    """
    by_way: dict[SearchWay, dict[tuple[str, int], Searched]] = {}
    for one in results:
        by_way.setdefault(one.way, {})[one.document, one.number] = one
    parts = (SearchWay.WORDS, SearchWay.VECTORS)
    if not {*parts, SearchWay.HYBRID} <= by_way.keys():
        return ()
    made: list[Difference] = []
    for name, figure in MEASURES.items():
        better = max(parts, key=lambda way: sum(map(figure, by_way[way].values())))
        differences = [
            figure(one) - figure(by_way[better][asked])
            for asked, one in by_way[SearchWay.HYBRID].items()
        ]
        low, high = interval(differences)
        mean = statistics.fmean(differences)
        made.append(Difference(measure=name, part=better, mean=mean, low=low, high=high))
    return made


#: `Baselines.rank`: positions, best first, of each question of a document by each way.
Ranks = Callable[
    [Document, Sequence[SearchWay]], Awaitable[Mapping[SearchWay, Sequence[Sequence[int]]]]
]


class SearchRun:
    """Searches for every question in every way."""

    def __init__(
        self,
        place: Place,
        indexes: Indexes,
        ways: Sequence[SearchWay],
        *,
        concurrency: int,
        on_result: Callable[[Searched], None],
        rank: Ranks,
    ) -> None:
        """`rank` is asked for the ways that are not the service's."""
        self._place = place
        self._indexes = indexes
        self._ways = ways
        self._documents = asyncio.Semaphore(concurrency)
        self._on_result = on_result
        self._rank = rank
        self._stub = session_service_pb2_grpc.SessionServiceStub(place.client.channel)

    async def go(self, documents: Sequence[Document]) -> None:
        """Runs to the end; failures are results."""
        async with asyncio.TaskGroup() as tasks:
            for document in documents:
                tasks.create_task(self._document(document))

    async def _document(self, document: Document) -> None:
        async with self._documents:
            try:
                session = await self._place.opened(document)
                await self._indexes.wait(session.id)
            except (palimpsest.PalimpsestError, Failed) as error:
                for one in self._unasked(document):
                    self._on_result(replace(one, failure=str(error)))
                return
            plain = await self._rank(document, [way for way in self._ways if way not in _MODES])
            asked = {question.number: at for at, question in enumerate(document.questions)}
            for one in self._unasked(document):
                at = asked[one.number]
                if one.way in _MODES:
                    self._on_result(
                        await self._search(one, session.id, document.questions[at].text)
                    )
                else:
                    self._on_result(replace(one, found=tuple(plain[one.way][at][:FOUND])))

    def _unasked(self, document: Document) -> list[Searched]:
        return [
            Searched(
                way=way,
                document=document.id,
                number=question.number,
                evidence=tuple(sorted(question.evidence)),
            )
            for question in document.questions
            for way in self._ways
        ]

    async def _search(self, asked: Searched, session: str, query: str) -> Searched:
        request = session_service_pb2.SearchChunksRequest(
            session=session,
            query=query,
            limit=FOUND,
            mode=_MODES[asked.way],
            rerank=asked.way is SearchWay.RERANKED,
        )
        began = time.monotonic()
        try:
            response = await self._place.client.call(
                self._stub.SearchChunks, request, timeout=self._place.timeout_seconds
            )
        except palimpsest.PalimpsestError as error:
            return replace(asked, failure=str(error), seconds=time.monotonic() - began)
        return replace(
            asked,
            found=tuple(one.chunk.position for one in response.results),
            seconds=time.monotonic() - began,
        )
