"""How much of the evidence of questions is in what the service recalls for them."""

import asyncio
import statistics
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import palimpsest
from evaluation.datasets import Document, Question
from evaluation.indexing import Indexes
from evaluation.intervals import interval
from evaluation.sessions import Place
from evaluation.strategies import Failed
from evaluation.words import normalized
from palimpsest.v1 import session_service_pb2, session_service_pb2_grpc
from service.domain.log.chunks import Chunk
from service.domain.prompting.tokens import TOKEN_BYTES

#: Budgets in tokens.
BUDGETS = (300, 800, 2000)
#: Chunks that the plain way takes at most.
TOP = 100


class RecallWay(StrEnum):
    """How a text for a prompt is put together, in the order in which it is compared."""

    #: The best chunks of SearchChunks, whole, best first, as long as the budget lasts; the one that
    #: exceeds it is cut.
    TOP_K = "top-k"
    #: Recall, without the memory.
    CHUNKS = "recall"
    #: Recall, with a memory that has read everything and was consolidated.
    MEMORY = "recall with memory"


@dataclass(frozen=True, kw_only=True, slots=True)
class Recollection:
    """A question for which a text was put together in one way."""

    way: RecallWay
    budget: int
    document: str
    #: The question's number within its document.
    number: int
    #: The share of the evidence's characters that are in the text.
    evidence: float = 0.0
    #: The share of the evidence's chunks of which anything is in it, or on which an entry of it
    #: rests.
    chunks: float = 0.0
    #: The share of the different words of the answer that are in it: the best of the right ones.
    answer: float = 0.0
    #: Tokens of the text.
    tokens: int = 0
    #: Why it failed, in a sentence; empty when it did not.
    failure: str = ""


#: What is compared, by its name.
MEASURES: Mapping[str, Callable[[Recollection], float]] = {
    "evidence": lambda one: one.evidence,
    "chunks": lambda one: one.chunks,
    "answer": lambda one: one.answer,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class RecallSummary:
    """The line of a way and a budget. Means are over all questions; one that failed counts as 0."""

    way: RecallWay
    budget: int
    questions: int
    failed: int
    tokens: float
    #: By the names of MEASURES.
    means: Mapping[str, float]
    #: The 95 % intervals.
    intervals: Mapping[str, tuple[float, float]]


def summarize(results: Collection[Recollection]) -> Sequence[RecallSummary]:
    """Returns a line for each budget and way that has results."""
    keys = {(one.budget, one.way) for one in results}
    order = sorted(keys, key=lambda key: (key[0], list(RecallWay).index(key[1])))
    return [
        _summary(way, budget, [one for one in results if (one.budget, one.way) == (budget, way)])
        for budget, way in order
    ]


def _summary(way: RecallWay, budget: int, mine: Sequence[Recollection]) -> RecallSummary:
    figures = {name: [figure(one) for one in mine] for name, figure in MEASURES.items()}
    return RecallSummary(
        way=way,
        budget=budget,
        questions=len(mine),
        failed=sum(bool(one.failure) for one in mine),
        tokens=statistics.fmean(one.tokens for one in mine),
        means={name: statistics.fmean(values) for name, values in figures.items()},
        intervals={name: interval(values) for name, values in figures.items()},
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Shown:
    """What a text has."""

    text: str
    tokens: int
    #: Characters of chunks that it shows, by position.
    characters: Mapping[int, int]
    #: The chunks that it shows, or that its entries rest on.
    positions: frozenset[int]


def judge(document: Document, question: Question, shown: Shown) -> Mapping[str, float]:
    """Returns the figures of MEASURES."""
    sizes = {at: len(document.chunks[at - 1].as_text()) for at in question.evidence}
    there = sum(min(shown.characters.get(at, 0), size) for at, size in sizes.items())
    words = set(normalized(shown.text).split())
    answers = [set(normalized(gold).split()) for gold in question.golds]
    return {
        "evidence": there / sum(sizes.values()),
        "chunks": len(question.evidence & shown.positions) / len(question.evidence),
        "answer": max((len(one & words) / len(one) for one in answers if one), default=0.0),
    }


def top_k(chunks: Sequence[tuple[int, Chunk]], budget: int) -> Shown:
    """Returns the text of chunks, best first, cut at the budget."""
    left = budget * TOKEN_BYTES
    texts: list[str] = []
    characters: dict[int, int] = {}
    for position, chunk in chunks:
        text = chunk.as_text().encode()[:left].decode(errors="ignore")
        left -= len(text.encode()) + 1
        texts.append(text)
        characters[position] = len(text)
        if left <= 0:
            break
    whole = "\n".join(texts)
    tokens = -(-len(whole.encode()) // TOKEN_BYTES)
    return Shown(text=whole, tokens=tokens, characters=characters, positions=frozenset(characters))


def recalled(response: session_service_pb2.RecallResponse) -> Shown:
    """Returns what a recalled text has."""
    characters: dict[int, int] = {}
    positions: set[int] = set()
    for part in response.parts:
        held = range(part.positions.first, part.positions.last + 1)
        positions.update(held)
        if part.section != session_service_pb2.RECALL_SECTION_MEMORY:
            characters[part.positions.first] = len(part.text)
    return Shown(
        text=response.text,
        tokens=response.tokens,
        characters=characters,
        positions=frozenset(positions),
    )


#: Reads a document's session into the memory that is recalled, and waits until it is consolidated.
Remember = Callable[[Document, palimpsest.Session], Awaitable[None]]


class RecallRun:
    """Puts together a text for every question, in every way, for every budget."""

    def __init__(
        self,
        place: Place,
        indexes: Indexes,
        budgets: Sequence[int],
        *,
        concurrency: int,
        on_result: Callable[[Recollection], None],
        remember: Remember | None,
    ) -> None:
        """Without `remember` there is no memory."""
        self._place = place
        self._indexes = indexes
        self._budgets = budgets
        self._documents = asyncio.Semaphore(concurrency)
        self._on_result = on_result
        self._remember = remember
        self._stub = session_service_pb2_grpc.SessionServiceStub(place.client.channel)

    @property
    def ways(self) -> Sequence[RecallWay]:
        """The ways that are compared."""
        return [way for way in RecallWay if self._remember or way is not RecallWay.MEMORY]

    async def go(self, documents: Sequence[Document]) -> None:
        """Runs to the end; failures are results."""
        async with asyncio.TaskGroup() as tasks:
            for document in documents:
                tasks.create_task(self._document(document))

    async def _document(self, document: Document) -> None:
        async with self._documents:
            try:
                session = await self._place.opened(document)
                if self._remember is not None:
                    await self._remember(document, session)
                await self._indexes.wait(session.id)
            except (palimpsest.PalimpsestError, Failed) as error:
                for question in document.questions:
                    for one in self._empty(document, question):
                        self._on_result(replace(one, failure=str(error)))
                return
            for question in document.questions:
                for one in self._empty(document, question):
                    self._on_result(await self._judged(one, document, question, session.id))

    def _empty(self, document: Document, question: Question) -> Sequence[Recollection]:
        return [
            Recollection(way=way, budget=budget, document=document.id, number=question.number)
            for budget in self._budgets
            for way in self.ways
        ]

    async def _judged(
        self, one: Recollection, document: Document, question: Question, session: str
    ) -> Recollection:
        try:
            if one.way is RecallWay.TOP_K:
                shown = await self._top_k(document, question, session, one.budget)
            else:
                shown = await self._recall(question, session, one)
        except palimpsest.PalimpsestError as error:
            return replace(one, failure=str(error))
        figures = judge(document, question, shown)
        return replace(
            one,
            evidence=figures["evidence"],
            chunks=figures["chunks"],
            answer=figures["answer"],
            tokens=shown.tokens,
        )

    async def _top_k(
        self, document: Document, question: Question, session: str, budget: int
    ) -> Shown:
        request = session_service_pb2.SearchChunksRequest(
            session=session, query=question.text, limit=TOP
        )
        response = await self._place.client.call(
            self._stub.SearchChunks, request, timeout=self._place.timeout_seconds
        )
        positions = [found.chunk.position for found in response.results]
        return top_k([(at, document.chunks[at - 1]) for at in positions], budget)

    async def _recall(self, question: Question, session: str, one: Recollection) -> Shown:
        request = session_service_pb2.RecallRequest(
            session=session, query=question.text, max_tokens=one.budget
        )
        if one.way is RecallWay.CHUNKS:
            request.sections.extend(
                [
                    session_service_pb2.RECALL_SECTION_CHUNKS,
                    session_service_pb2.RECALL_SECTION_UNREAD,
                ]
            )
        response = await self._place.client.call(
            self._stub.Recall, request, timeout=self._place.timeout_seconds
        )
        return recalled(response)
