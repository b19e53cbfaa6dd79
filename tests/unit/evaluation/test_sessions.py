"""Waiting for memories and indexes: until they are done, and no longer than they get on."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

import palimpsest
from evaluation import indexing, sessions
from evaluation.indexing import Indexes
from evaluation.sessions import Patience, building, create, until
from evaluation.strategies import Failed, Spent
from palimpsest import Memory
from palimpsest.v1 import session_service_pb2


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Returns a clock that moves ten seconds at each reading, without sleeping."""
    now = [0.0]

    async def sleep(_: float) -> None:
        now[0] += 10

    monkeypatch.setattr(sessions, "time", SimpleNamespace(monotonic=lambda: now[0]))
    for module in (sessions, indexing):
        monkeypatch.setattr(module, "asyncio", SimpleNamespace(sleep=sleep))
    return now


def test_patience_is_with_what_gets_on(clock: list[float]) -> None:
    patience = Patience("it", 30)
    for reached in range(10):
        patience.look(reached)
        clock[0] += 30
    patience.look(9)
    clock[0] += 1
    with pytest.raises(Failed, match="it did not get on for 30 s"):
        patience.look(9)


class Growing:
    """A memory that grows by one revision at each look, up to a last one."""

    id = "notes"

    def __init__(self, last: int) -> None:
        self.revision = 0
        self.last = last

    async def look(self) -> Any:
        self.revision = min(self.revision + 1, self.last)
        return SimpleNamespace(revision=self.revision)


async def test_a_memory_is_waited_for_as_long_as_it_grows() -> None:
    info = await until(cast(Memory, Growing(9)), lambda info: info.revision == 9, 15)
    assert info.revision == 9
    with pytest.raises(Failed, match="memory 'notes' did not get on for 15 s"):
        await until(cast(Memory, Growing(3)), lambda info: info.revision == 9, 15)


async def test_a_memory_that_is_there_is_kept() -> None:
    made = []

    async def make(reason: str) -> None:
        made.append(reason)
        if reason:
            error = palimpsest.PalimpsestError("no")
            error.reason = reason
            raise error

    await create(lambda: make(""))
    await create(lambda: make("MEMORY_EXISTS"))
    with pytest.raises(palimpsest.PalimpsestError):
        await create(lambda: make("SCHEMA_INVALID"))
    assert len(made) == 3


def line(purpose: str, calls: int) -> Any:
    used = SimpleNamespace(
        calls=calls, input_tokens=10, output_tokens=1, cost_micro_usd=0, unpriced_calls=calls
    )
    return SimpleNamespace(purpose=purpose, usage=used)


async def test_building_counts_calls_that_make_memories_and_not_questions() -> None:
    async def usage(memory: str) -> Any:
        assert memory == "prism"
        found = ("revise", "schema", "consolidate", "answer", "navigate", "browse")
        return SimpleNamespace(lines=[line(purpose, 2) for purpose in found])

    session = cast(palimpsest.Session, SimpleNamespace(usage=usage))
    assert await building(session, "prism") == Spent(calls=6, input_tokens=30, output_tokens=3)


class Service:
    """Says how far an index is, look by look."""

    channel = None

    def __init__(self, *looks: session_service_pb2.SearchIndex) -> None:
        self.looks = list(looks)

    async def call(self, _: object, request: Any) -> Any:
        return self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]


def index(words: int, vectors: int, **more: Any) -> session_service_pb2.SearchIndex:
    return session_service_pb2.SearchIndex(
        head=9, indexed_position=words, embedded_position=vectors, **more
    )


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> None:
    found = SimpleNamespace(SessionServiceStub=lambda _: SimpleNamespace(GetSearchIndex=None))
    monkeypatch.setattr(indexing, "session_service_pb2_grpc", found)


def indexes(service: Service, *, wants_vectors: bool) -> Indexes:
    client = cast(palimpsest.Client, service)
    return Indexes(client, wants_vectors=wants_vectors, timeout_seconds=15)


@pytest.mark.usefixtures("stub")
async def test_words_are_enough_where_no_strategy_wants_vectors() -> None:
    service = Service(index(3, 0), index(9, 0))
    await indexes(service, wants_vectors=False).wait("s")
    assert len(service.looks) == 1


@pytest.mark.usefixtures("stub")
async def test_vectors_are_waited_for_where_there_are_some_or_are_to_be() -> None:
    service = Service(index(9, 0), index(9, 4, embedding_model="m"), index(9, 9))
    assert (await indexes(service, wants_vectors=True).wait("s")).embedded_position == 9
    service = Service(index(9, 4, embedding_model="m"), index(9, 9, embedding_model="m"))
    assert (await indexes(service, wants_vectors=False).wait("s")).embedded_position == 9
    service = Service(index(9, 0, vectors_unavailable="no pgvector"))
    assert (await indexes(service, wants_vectors=True).wait("s")).vectors_unavailable


@pytest.mark.usefixtures("stub")
async def test_an_index_that_does_not_get_on_says_why() -> None:
    service = Service(index(9, 4, embedding_model="m", failure="the model is away"))
    with pytest.raises(Failed, match="of 's' did not get on for 15 s: the model is away"):
        await indexes(service, wants_vectors=True).wait("s")
