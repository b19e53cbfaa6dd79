"""A rebuild that is followed when its call is lost."""

from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from grpc import aio

import palimpsest
from palimpsest._convert_memories import copied
from palimpsest.v1 import memories_pb2 as v1
from palimpsest.v1 import memory_service_pb2
from palimpsest.v1alpha1 import edits_pb2, memories_pb2
from tests.unit.client.server import add, serving

Memory = memories_pb2.Memory


def at(position: int, **rest: Any) -> Memory:
    rest = {"status": Memory.STATUS_ACTIVE, **rest}
    return Memory(name="n", applied_position=position, head=3, **rest)


class Service:
    """Tells some events and loses the call; `states` are read afterwards."""

    def __init__(self, events: list[Memory], states: list[Memory]) -> None:
        self.events = events
        self.states = states

    async def RebuildMemory(
        self, request: edits_pb2.RebuildMemoryRequest, context: Any
    ) -> AsyncIterator[edits_pb2.RebuildMemoryResponse]:
        for memory in self.events:
            yield edits_pb2.RebuildMemoryResponse(memory=memory, done=memory.applied_position == 3)
        await context.abort(grpc.StatusCode.UNAVAILABLE, "stopping")

    async def GetMemory(
        self, request: memory_service_pb2.GetMemoryRequest, context: Any
    ) -> v1.Memory:
        assert request.memory == "n"
        found: v1.Memory = copied(self.states.pop(0), v1.Memory(value_json="{}"))
        return found

    def register(self, server: aio.Server) -> None:
        rebuild_request = edits_pb2.RebuildMemoryRequest
        get_request = memory_service_pb2.GetMemoryRequest
        add(server, "EditService", "told", self.RebuildMemory, rebuild_request)
        add(server, "MemoryService", "unary", self.GetMemory, get_request)


async def rebuild(service: Service) -> list[int]:
    heard: list[int] = []
    async with serving(service.register) as port, palimpsest.connect(f"127.0.0.1:{port}") as client:
        old = client.session("s").memory("m")
        made = await old.rebuild("n", on_progress=lambda info: heard.append(info.applied_position))
        assert made.id == "n"
    return heard


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("palimpsest._async._memory.POLL_SECONDS", 0.001)


async def test_it_is_done_when_the_service_says_so() -> None:
    assert await rebuild(Service([at(0), at(2), at(3)], [])) == [0, 2, 3]


async def test_a_lost_call_is_followed_to_the_goal_of_its_first_event() -> None:
    later = at(3)
    later.head = 9
    assert await rebuild(Service([at(0), at(1)], [at(1), at(2), later])) == [0, 1, 1, 2, 3]


async def test_a_stall_is_raised_also_when_the_call_was_lost() -> None:
    stall = Memory.Stall(position=2, cause="no model")
    stalled = at(1, status=Memory.STATUS_STALLED, stall=stall)
    with pytest.raises(
        palimpsest.FailedPrecondition, match="stalled at position 2: no model"
    ) as seen:
        await rebuild(Service([at(0)], [stalled]))
    assert seen.value.reason == "MEMORY_STALLED"


async def test_a_call_that_never_began_is_an_error() -> None:
    with pytest.raises(palimpsest.ConnectionFailed, match="cannot reach"):
        await rebuild(Service([], []))


class States(Service):
    """The same of a state memory, which is looked up in the list."""

    async def ListMemories(
        self, request: memory_service_pb2.ListMemoriesRequest, context: Any
    ) -> memory_service_pb2.ListMemoriesResponse:
        found = copied(self.states.pop(0), v1.Memory())
        return memory_service_pb2.ListMemoriesResponse(memories=[v1.Memory(id="m"), found])

    def register(self, server: aio.Server) -> None:
        request = memory_service_pb2.ListMemoriesRequest
        add(server, "EditService", "told", self.RebuildMemory, edits_pb2.RebuildMemoryRequest)
        add(server, "MemoryService", "unary", self.ListMemories, request)


@pytest.mark.parametrize(
    "last",
    [{"resting": True, "applied_position": 2}, {"applied_position": 4}],
    ids=["it rests", "it has gone on"],
)
async def test_a_state_memory_is_followed_until_nothing_is_due(last: dict[str, Any]) -> None:
    def of(**fields: Any) -> Memory:
        spec = memories_pb2.StateSpec()
        return Memory(name="n", head=3, status=Memory.STATUS_ACTIVE, state=spec, **fields)

    heard: list[tuple[int, bool]] = []
    service = States([of()], [of(applied_position=2), of(applied_position=3), of(**last)])
    async with serving(service.register) as port, palimpsest.connect(f"127.0.0.1:{port}") as client:
        made = await (
            client.session("s")
            .state("m")
            .rebuild("n", on_progress=lambda info: heard.append((info.applied_position, info.idle)))
        )
    assert made.id == "n"
    assert heard[:3] == [(0, False), (2, False), (3, False)]
    assert len(heard) == 4
    assert service.states == []
