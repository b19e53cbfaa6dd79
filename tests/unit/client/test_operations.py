"""Operations that are waited for, also when their stream is lost."""

from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from grpc import aio

import palimpsest
from palimpsest.v1 import (
    common_pb2,
    errors_pb2,
    memories_pb2,
    operation_service_pb2,
    operations_pb2,
)
from tests.unit.client.server import add, serving

Message = operations_pb2.Operation


def at(position: int, **rest: Any) -> Message:
    progress = Message.Progress(completed=position, total=3)
    return Message(id="o", state=common_pb2.OPERATION_STATE_RUNNING, progress=progress, **rest)


def done() -> Message:
    result = memories_pb2.Memory(session="s", id="n", applied_position=3)
    state = common_pb2.OPERATION_STATE_DONE
    return Message(id="o", state=state, kind=Message.KIND_REBUILD, memory_result=result)


class Service:
    """Streams some states and loses the call, and then the next ones."""

    def __init__(self, *streams: list[Message]) -> None:
        self.streams = list(streams)

    async def GetOperation(
        self, request: operation_service_pb2.GetOperationRequest, context: Any
    ) -> Message:
        assert request.operation == "o"
        return at(0)

    async def WaitOperation(
        self, request: operation_service_pb2.WaitOperationRequest, context: Any
    ) -> AsyncIterator[Message]:
        for message in self.streams.pop(0):
            yield message
        if self.streams:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "stopping")
        if message.state == common_pb2.OPERATION_STATE_RUNNING:
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "late")

    def register(self, server: aio.Server) -> None:
        get = operation_service_pb2.GetOperationRequest
        add(server, "OperationService", "unary", self.GetOperation, get)
        wait = operation_service_pb2.WaitOperationRequest
        add(server, "OperationService", "told", self.WaitOperation, wait)


async def wait(service: Service) -> tuple[Any, list[int | None]]:
    heard: list[int | None] = []

    def hear(info: palimpsest.OperationInfo[Any]) -> None:
        heard.append(None if info.progress is None else info.progress.completed)

    async with serving(service.register) as port, palimpsest.connect(f"127.0.0.1:{port}") as client:
        operation = await client.operation("o")
        assert (operation.state, operation.has_ended) == ("running", False)
        result = await operation.wait(on_progress=hear)
        assert (operation.state, operation.progress, operation.result) == ("done", None, result)
    return result, heard


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("palimpsest._async._operation.BACKOFF_SECONDS", (0.001, 0.01))


async def test_its_result_is_returned_when_it_is_done() -> None:
    result, heard = await wait(Service([at(0), at(2), done()]))
    assert isinstance(result, palimpsest.MemoryInfo)
    assert (result.id, heard) == ("n", [0, 2, None])


async def test_a_lost_stream_is_opened_again() -> None:
    _, heard = await wait(Service([at(0), at(1)], [at(1)], [at(2), done()]))
    assert heard == [0, 1, 1, 2, None]


async def test_its_error_is_raised() -> None:
    error = errors_pb2.ErrorStatus(
        code=grpc.StatusCode.FAILED_PRECONDITION.value[0],
        reason=errors_pb2.ERROR_REASON_MEMORY_STALLED,
        message="memory 'n' stalled at position 2: no model",
        metadata={"position": "2"},
    )
    failed = Message(id="o", state=common_pb2.OPERATION_STATE_FAILED, error=error)
    with pytest.raises(palimpsest.FailedPrecondition, match="no model") as caught:
        await wait(Service([at(1), failed]))
    assert (caught.value.reason, caught.value.metadata) == ("MEMORY_STALLED", {"position": "2"})


async def test_one_that_was_cancelled_or_has_lost_its_result_has_none() -> None:
    cancelled = Message(id="o", state=common_pb2.OPERATION_STATE_CANCELLED)
    with pytest.raises(palimpsest.Cancelled, match="operation o was cancelled"):
        await wait(Service([cancelled]))
    deleted = Message(id="o", state=common_pb2.OPERATION_STATE_DONE)
    with pytest.raises(palimpsest.NotFound, match="was deleted"):
        await wait(Service([deleted]))


async def test_what_is_late_names_the_operation() -> None:
    with pytest.raises(palimpsest.DeadlineExceeded, match="it goes on") as caught:
        await wait(Service([at(1)]))
    assert caught.value.reason == "OPERATION_NOT_ENDED_IN_TIME"
    assert caught.value.metadata == {"operation": "o"}
