"""What of the evidence is in a recalled text, against values worked by hand."""

from types import SimpleNamespace
from typing import Any, cast

import palimpsest
from evaluation.datasets import Document, Question
from evaluation.indexing import Indexes
from evaluation.recalling import (
    RecallRun,
    RecallWay,
    Recollection,
    Shown,
    judge,
    recalled,
    summarize,
    top_k,
)
from evaluation.sessions import Place
from evaluation.strategies import Failed
from palimpsest.v1 import common_pb2, session_service_pb2
from service.domain.log.chunks import Chunk, ChunkKind

TEXTS = ("Ann lives in Hull.", "It rains.", "Ann has a red boat.")
DOCUMENT = Document(
    id="d",
    chunks=tuple(Chunk(kind=ChunkKind.TEXT, text=one) for one in TEXTS),
    questions=(
        Question(
            number=1,
            text="What does Ann have?",
            golds=("a blue boat", "the red boat"),
            evidence=frozenset({1, 3}),
        ),
    ),
)
QUESTION = DOCUMENT.questions[0]
MEMORY, CHUNKS = (
    session_service_pb2.RECALL_SECTION_MEMORY,
    session_service_pb2.RECALL_SECTION_CHUNKS,
)


def shown(text: str, characters: dict[int, int], *cited: int) -> Shown:
    positions = frozenset({*characters, *cited})
    return Shown(text=text, tokens=9, characters=characters, positions=positions)


def test_evidence_counts_by_what_is_shown_of_it() -> None:
    found = judge(DOCUMENT, QUESTION, shown("A boat, red.", {2: 9, 3: 10}, 3))
    assert found["evidence"] == 10 / (len(TEXTS[0]) + len(TEXTS[2]))
    assert found["chunks"] == 0.5
    assert found["answer"] == 1.0
    whole = judge(DOCUMENT, QUESTION, shown("", {1: 400, 3: 400}))
    assert (whole["evidence"], whole["chunks"], whole["answer"]) == (1.0, 1.0, 0.0)
    by_memory = judge(DOCUMENT, QUESTION, shown("a boat", {}, 1, 2, 3))
    assert (by_memory["evidence"], by_memory["chunks"], by_memory["answer"]) == (0.0, 1.0, 0.5)


def test_the_best_chunks_are_cut_at_the_budget() -> None:
    chunks = [(3, DOCUMENT.chunks[2]), (1, DOCUMENT.chunks[0]), (2, DOCUMENT.chunks[1])]
    found = top_k(chunks, 7)
    assert found.text == "Ann has a red boat.\nAnn live"
    assert found.tokens == 7
    assert found.characters == {3: 19, 1: 8}
    assert top_k(chunks, 100).positions == {1, 2, 3}


def test_what_a_recalled_text_has() -> None:
    part = session_service_pb2.RecallResponse.Part
    response = session_service_pb2.RecallResponse(
        text="text",
        tokens=4,
        parts=[
            part(section=MEMORY, text="a", positions=common_pb2.PositionRange(first=4, last=6)),
            part(section=CHUNKS, text="abc", positions=common_pb2.PositionRange(first=9, last=9)),
        ],
    )
    found = recalled(response)
    assert (found.text, found.tokens, found.characters) == ("text", 4, {9: 3})
    assert found.positions == {4, 5, 6, 9}


def test_a_failure_counts_as_nothing() -> None:
    held = {"way": RecallWay.CHUNKS, "budget": 300, "document": "d"}
    results = [
        Recollection(**held, number=1, evidence=1.0, chunks=1.0, answer=1.0, tokens=200),  # type: ignore[arg-type]
        Recollection(**held, number=2, failure="it broke"),  # type: ignore[arg-type]
        Recollection(way=RecallWay.TOP_K, budget=300, document="d", number=1),
    ]
    first, second = summarize(results)
    assert (first.way, second.way) == (RecallWay.TOP_K, RecallWay.CHUNKS)
    assert (second.questions, second.failed, second.tokens) == (2, 1, 100)
    assert set(second.means.values()) == {0.5}


class _Service:
    """A service that fails, or finds the third chunk."""

    def __init__(self, failure: Exception | None = None) -> None:
        self.failure = failure
        self.channel = SimpleNamespace(
            **dict.fromkeys(
                ("unary_unary", "unary_stream", "stream_unary", "stream_stream"),
                lambda name, **_: name.rpartition("/")[2],
            )
        )
        self.asked: list[Any] = []

    async def call(self, method: str, request: Any, *, timeout: float) -> Any:
        self.asked.append(request)
        if method == "Recall":
            part = session_service_pb2.RecallResponse.Part(
                section=CHUNKS,
                text=TEXTS[2],
                positions=common_pb2.PositionRange(first=3, last=3),
            )
            return session_service_pb2.RecallResponse(text=TEXTS[2], tokens=5, parts=[part])
        if self.failure is not None:
            raise self.failure
        return session_service_pb2.SearchChunksResponse()

    async def opened(self, document: Document) -> Any:
        return SimpleNamespace(id=document.id)


async def _run(service: _Service, **others: Any) -> list[Recollection]:
    results: list[Recollection] = []

    async def wait(_: str) -> None:
        return None

    place = SimpleNamespace(client=service, opened=service.opened, timeout_seconds=1)
    run = RecallRun(
        cast(Place, place),
        cast(Indexes, SimpleNamespace(wait=wait)),
        (300,),
        concurrency=1,
        on_result=results.append,
        remember=others.get("remember"),
    )
    await run.go([DOCUMENT])
    return results


async def test_every_way_is_judged_and_hides_no_failure() -> None:
    read: list[str] = []

    async def remember(document: Document, _: palimpsest.Session) -> None:
        read.append(document.id)

    service = _Service(palimpsest.Unavailable("it is away"))
    results = await _run(service, remember=remember)
    assert read == ["d"]
    assert [one.way for one in results] == list(RecallWay)
    assert "it is away" in results[0].failure
    assert [one.chunks for one in results] == [0.0, 0.5, 0.5]
    sections = [list(one.sections) for one in service.asked[1:]]
    assert sections[0] == [CHUNKS, session_service_pb2.RECALL_SECTION_UNREAD]
    assert sections[1] == []


async def test_a_document_that_cannot_be_read_fails_for_each_question() -> None:
    async def remember(*_: Any) -> None:
        raise Failed("it does not get on")

    results = await _run(_Service(), remember=remember)
    assert [one.failure for one in results] == ["it does not get on"] * 3
