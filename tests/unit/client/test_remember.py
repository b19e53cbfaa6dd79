"""What `session.remember` sends again, and what it says when it stops halfway."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from grpc import aio

import palimpsest
from palimpsest import sync
from palimpsest.v1 import (
    common_pb2,
    memories_pb2,
    memory_service_pb2,
    session_service_pb2,
)
from tests.unit.client.agent_service import refuse
from tests.unit.client.server import add, serving

TURNS = [f"turn {number}" for number in range(600)]
CODE = grpc.StatusCode


class Service:
    """A session that may be missing, whose appends end as the test says."""

    def __init__(self, ends: dict[int, tuple[CODE, str]] | None = None) -> None:
        self.exists = True
        #: How many creations are refused, since a deleted session is still being removed.
        self.removing = 0
        self.created = 0
        self.texts: list[str] = []
        #: The positions of requests that are stored.
        self.stored: dict[str, tuple[int, int]] = {}
        #: Calls of Append that end so, by their number; they store nothing.
        self.ends = ends or {}
        self.calls: list[str] = []
        self.memories: list[memories_pb2.Memory] = []
        #: How reads of a memory end, by its id.
        self.reads: dict[str, tuple[CODE, str]] = {}
        self.read: list[tuple[str, str]] = []
        #: How long calls may take that are no appends, in seconds.
        self.left: dict[str, float] = {}

    async def CreateSession(self, request: Any, context: Any) -> Any:
        self.left["CreateSession"] = context.time_remaining()
        if self.removing:
            self.removing -= 1
            await refuse(context, CODE.ABORTED, "BEING_DELETED", "try again soon")
        self.created += 1
        self.exists = True
        return request.session

    async def Append(self, request: Any, context: Any) -> Any:
        self.calls.append(request.request_id)
        if not self.exists:
            await refuse(context, CODE.NOT_FOUND, "SESSION_NOT_FOUND", "there is no session")
        if len(self.calls) in self.ends:
            await refuse(context, *self.ends.pop(len(self.calls)), "as the test says")
        if request.request_id not in self.stored:
            first = len(self.texts) + 1
            self.texts += [chunk.text for chunk in request.chunks]
            self.stored[request.request_id] = first, len(self.texts)
        first, last = self.stored[request.request_id]
        positions = common_pb2.PositionRange(first=first, last=last)
        return session_service_pb2.AppendResponse(positions=positions, read_token=f"to {last}")

    async def ListMemories(self, request: Any, context: Any) -> Any:
        self.left["ListMemories"] = context.time_remaining()
        return memory_service_pb2.ListMemoriesResponse(memories=self.memories)

    async def GetMemory(self, request: Any, context: Any) -> Any:
        self.left["GetMemory"] = context.time_remaining()
        self.read.append((request.memory, request.consistency.at_least))
        if request.memory in self.reads:
            await refuse(context, *self.reads[request.memory], "as the test says")
        return memories_pb2.Memory(id=request.memory)

    def register(self, server: aio.Server) -> None:
        sessions, memories = session_service_pb2, memory_service_pb2
        for name, handle, request in (
            ("SessionService", self.CreateSession, sessions.CreateSessionRequest),
            ("SessionService", self.Append, sessions.AppendRequest),
            ("MemoryService", self.ListMemories, memories.ListMemoriesRequest),
            ("MemoryService", self.GetMemory, memories.GetMemoryRequest),
        ):
            add(server, name, "unary", handle, request)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("_connection", "_remember"):
        monkeypatch.setattr(f"palimpsest._async.{module}.BACKOFF_SECONDS", (0.001, 0.01))


@asynccontextmanager
async def connected(service: Service) -> AsyncIterator[palimpsest.Session]:
    async with (
        serving(service.register) as port,
        palimpsest.connect(f"127.0.0.1:{port}") as client,
    ):
        yield client.session("alice")


async def test_a_missing_session_is_created_once() -> None:
    service = Service()
    service.exists = False
    async with connected(service) as session:
        first = await session.remember("a")
        second = await session.remember("b")
    assert (service.created, service.texts) == (1, ["a", "b"])
    assert service.calls == [first.request_id, first.request_id, second.request_id]


async def test_a_session_that_is_being_removed_is_created_when_it_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    service = Service()
    service.exists, service.removing = False, 3
    async with connected(service) as session:
        await session.remember("a")
        assert (service.created, service.removing, service.texts) == (1, 0, ["a"])
        service.exists, service.removing = False, 100
        # The next try would be after the timeout.
        monkeypatch.setattr("palimpsest._async._remember.BACKOFF_SECONDS", (1000.0, 1000.0))
        with pytest.raises(palimpsest.Aborted) as caught:
            await session.remember("b")
    assert (caught.value.reason, service.removing) == ("BEING_DELETED", 99)


async def test_many_messages_are_appended_in_parts_and_in_order() -> None:
    service = Service()
    async with connected(service) as session:
        found = await session.remember(TURNS, request_id="turn-1")
    assert service.texts == TURNS
    assert found == palimpsest.Remembered(
        positions=palimpsest.PositionRange(first=1, last=600),
        read_token="to 600",
        request_id="turn-1",
        chunks=600,
        skipped=0,
    )
    assert (len(service.calls), service.calls[0]) == (3, "turn-1")


@pytest.mark.parametrize("failing", [1, 2, 3])
async def test_what_a_lost_service_has_not_stored_is_sent_again(failing: int) -> None:
    service = Service({failing: (CODE.UNAVAILABLE, "DATABASE_UNAVAILABLE")})
    async with connected(service) as session:
        await session.remember(TURNS)
    assert service.texts == TURNS
    assert (len(service.calls), len(set(service.calls))) == (4, 3)


async def test_a_call_that_ends_halfway_continues_under_its_id() -> None:
    service = Service({2: (CODE.INTERNAL, "")})
    async with connected(service) as session:
        with pytest.raises(palimpsest.PalimpsestError) as caught:
            await session.remember(TURNS)
        name = caught.value.metadata["request_id"]
        assert caught.value.metadata["stored_chunks"] == "256"
        assert "256 of 600 chunks are stored for certain" in str(caught.value)
        assert f"request_id={name!r}" in str(caught.value)
        found = await session.remember(TURNS, request_id=name)
    assert service.texts == TURNS
    assert found.positions == palimpsest.PositionRange(first=1, last=600)


async def test_a_refusal_says_what_had_been_stored_before_it() -> None:
    refusal = CODE.INVALID_ARGUMENT, "FIELD_INVALID"
    async with connected(Service({1: refusal})) as session:
        with pytest.raises(palimpsest.InvalidArgument) as caught:
            await session.remember(TURNS)
    assert str(caught.value) == "as the test says"
    async with connected(Service({3: refusal})) as session:
        with pytest.raises(palimpsest.InvalidArgument) as caught:
            await session.remember(TURNS)
    assert str(caught.value) == "as the test says; 512 of 600 chunks had been stored before"


async def test_nothing_is_sent_when_a_message_is_refused() -> None:
    service = Service()
    image = {"role": "user", "content": [{"type": "image_url"}]}
    async with connected(service) as session:
        with pytest.raises(ValueError, match="message 2: part 1: an image"):
            await session.remember(["x", image])
        found = await session.remember([{"role": "system", "content": "x"}], wait=True)
    assert not service.calls
    assert (found.positions, found.chunks, found.skipped, found.read_token) == (None, 0, 1, "")


async def test_two_equal_calls_store_twice() -> None:
    service = Service()
    async with connected(service) as session:
        await session.remember("ok")
        await session.remember("ok")
    assert service.texts == ["ok", "ok"]


def memory(id: str, **more: Any) -> memories_pb2.Memory:
    return memories_pb2.Memory(session="alice", id=id, **more)


async def test_waiting_reads_each_memory_that_still_reads() -> None:
    service = Service()
    sealed = memory("sealed", status=memories_pb2.Memory.STATUS_SEALED)
    service.memories = [memory("a"), sealed, memory("closing"), memory("gone"), memory("b")]
    service.reads = {
        "closing": (CODE.FAILED_PRECONDITION, "MEMORY_SEALED"),
        "gone": (CODE.NOT_FOUND, "MEMORY_NOT_FOUND"),
    }
    async with connected(service) as session:
        await session.remember("x", wait=True)
        assert [name for name, _ in service.read] == ["a", "closing", "gone", "b"]
        assert {token for _, token in service.read} == {"to 1"}
        service.memories, service.read = [], []
        await session.remember("x", wait=True)
    assert not service.read


async def test_every_call_may_take_what_is_left_of_the_time() -> None:
    service = Service()
    service.exists, service.memories = False, [memory("a")]
    async with connected(service) as session:
        await session.remember("x", wait=True, timeout=1000)
        # The default of a call is 30 seconds.
        assert {name: left > 100 for name, left in service.left.items()} == {
            "CreateSession": True,
            "ListMemories": True,
            "GetMemory": True,
        }
        service.exists = False
        await session.remember("y", wait=True, timeout=20)
    assert all(left < 25 for left in service.left.values())


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (CODE.DEADLINE_EXCEEDED, palimpsest.DeadlineExceeded),
        (CODE.FAILED_PRECONDITION, palimpsest.FailedPrecondition),
        (CODE.RESOURCE_EXHAUSTED, palimpsest.ResourceExhausted),
    ],
)
async def test_a_wait_that_ends_says_that_all_is_stored(code: CODE, kind: type[Exception]) -> None:
    service = Service()
    service.memories, service.reads = [memory("a")], {"a": (code, "NOT_APPLIED_IN_TIME")}
    async with connected(service) as session:
        with pytest.raises(kind) as caught:
            await session.remember(["x", "y"], wait=True)
    error = caught.value
    assert isinstance(error, palimpsest.PalimpsestError)
    assert "Everything is stored all the same, up to position 2" in str(error)
    assert error.reason == "NOT_APPLIED_IN_TIME"
    assert error.metadata["read_token"] == "to 2"
    assert service.texts == ["x", "y"]


async def test_a_memory_that_is_stalled_does_not_end_the_wait_for_others() -> None:
    service = Service()
    service.memories = [memory("a"), memory("b"), memory("default")]
    service.reads = {
        "a": (CODE.FAILED_PRECONDITION, "MEMORY_STALLED"),
        "b": (CODE.RESOURCE_EXHAUSTED, "BUDGET_EXHAUSTED"),
    }
    async with connected(service) as session:
        with pytest.raises(palimpsest.FailedPrecondition) as caught:
            await session.remember("x", wait=True)
    assert [name for name, _ in service.read] == ["a", "b", "default"]
    assert str(caught.value) == (
        "as the test says. Everything is stored all the same, up to position 1, and this memory"
        " reads it once it is retried: do not pass it again"
    )


async def test_without_await_it_is_the_same() -> None:
    service = Service({2: (CODE.UNAVAILABLE, "DATABASE_UNAVAILABLE")})
    service.exists = False

    def use(port: int) -> palimpsest.Remembered:
        with sync.connect(f"127.0.0.1:{port}") as client:
            return client.session("alice").remember(TURNS, wait=True)

    async with serving(service.register) as port:
        found = await asyncio.to_thread(use, port)
    assert service.texts == TURNS
    assert found.chunks == 600
