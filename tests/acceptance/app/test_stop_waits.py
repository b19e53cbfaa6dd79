"""A server that stops ends all waiting calls at once, though it may drain for an hour."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from grpc import aio

import palimpsest
from palimpsest import _errors
from palimpsest.v1 import (
    answer_service_pb2,
    answer_service_pb2_grpc,
    common_pb2,
    memory_service_pb2,
    memory_service_pb2_grpc,
    operation_service_pb2,
    operation_service_pb2_grpc,
)
from service.app.serve import serve
from service.settings.config import Config
from tests.acceptance.app.test_stop import Front

SCHEMA = "class Notes:\n    topics: dict[str, list[str]]\n"
FRESH = common_pb2.ReadConsistency(fully_applied=True)


@asynccontextmanager
async def serving(url: str) -> AsyncIterator[tuple[palimpsest.Client, asyncio.Event]]:
    """Yields a server without workers, and what stops it; it is gone at the end."""
    config = Config(database_url=url, listen="127.0.0.1:0", stop_seconds=3600)  # type: ignore[arg-type]
    stop, ready = asyncio.Event(), asyncio.get_running_loop().create_future()
    running = asyncio.create_task(serve(config, stop, ready.set_result))
    await asyncio.wait((running, ready), return_when=asyncio.FIRST_COMPLETED)
    try:
        async with palimpsest.connect(ready.result()) as client:
            yield client, stop
    finally:
        stop.set()
        await running


async def refused(call: Awaitable[Any]) -> palimpsest.PalimpsestError:
    with pytest.raises(aio.AioRpcError) as caught:
        await call
    return _errors.from_rpc(caught.value, "test")


async def test_calls_that_wait_end_at_once_and_say_where_to_go_on(url: str) -> None:
    async with serving(url) as (client, stop):
        session = await client.create_session("s")
        await session.create_memory("m", SCHEMA, chunk_tokens=1)
        async with session.producer("p") as producer:
            await producer.append("text")
        answers = answer_service_pb2_grpc.AnswerServiceStub(client.channel)
        behind = answer_service_pb2.AskRequest(
            session="s", memory="m", query="q", consistency=FRESH
        )
        asking: Any = answers.Ask(behind)
        assert (await asking.read()).WhichOneof("event") == "waiting"
        begun = answer_service_pb2.AskRequest(session="s", memory="m", query="q")
        many: Any = answers.AskMany(answer_service_pb2.AskManyRequest(questions=[begun, behind]))
        told = [await many.read() for _ in range(2)]
        assert {(one.index, one.WhichOneof("event")) for one in told} == {
            (0, "reading"),
            (1, "waiting"),
        }
        reads = memory_service_pb2_grpc.MemoryServiceStub(client.channel)
        reading: Any = reads.GetMemory(
            memory_service_pb2.GetMemoryRequest(
                session="s",
                memory="m",
                consistency=common_pb2.ReadConsistency(fully_applied=True),
            )
        )
        schema = await session.request_schema("d", "q")
        operations = operation_service_pb2_grpc.OperationServiceStub(client.channel)
        wanted = operation_service_pb2.WaitOperationRequest(operation=schema.id)
        generating: Any = operations.WaitOperation(wanted)
        await generating.read()
        # The others wait for certain: they have said so, or were sent before this one ended.
        await session.chunks().__anext__()
        stop.set()
        for call in (asking.read(), many.read(), reading, generating.read()):
            error = await refused(call)
            assert isinstance(error, palimpsest.Unavailable)
            assert (error.reason, error.metadata) == ("SERVER_STOPPING", {})
            assert error.retry_seconds


@pytest.mark.prove
async def test_many_questions_go_on_at_another_server_when_theirs_stops(url: str) -> None:
    async with Front().open() as front, serving(url) as (other, _), serving(url) as (first, stop):
        await first.create_session("s")
        front.to = first.address
        async with palimpsest.connect(front.address) as client:
            heard: list[str] = []

            def hear(number: int, event: object) -> None:
                heard.append(type(event).__name__)
                if heard.count("Reading") == 2:
                    front.to = other.address
                    stop.set()

            session = client.session("s")
            # Time for the way from one server to the other, on a busy machine too.
            ended = await session.ask_all(["one", "two"], timeout=10, on_event=hear)
        # No worker answers; it is the other server that says so, when the time is up.
        late = [one.reason for one in ended if isinstance(one, palimpsest.DeadlineExceeded)]
        assert late == ["ANSWER_NOT_READY_IN_TIME"] * 2
