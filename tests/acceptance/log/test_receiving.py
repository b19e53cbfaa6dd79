"""Malformed, incomplete and missing messages, and how clients share the slots for them."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import aio
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

import palimpsest
from palimpsest import _errors
from palimpsest.v1 import memory_service_pb2, memory_service_pb2_grpc, session_service_pb2
from service.app.serve import serve
from service.rpc.interceptors import telemetry
from service.rpc.stream_guard import StreamGuard
from service.settings.config import Config
from tests.acceptance.log.test_flow_control import SCHEMA, refusal, refused, serving, serving_client
from tests.support.stream_status import raise_status

#: No protobuf: a field that is longer than what follows.
MALFORMED = b"\x0a\xff"
UNARY = "/palimpsest.v1.SessionService/GetSession"
HEALTH = "/grpc.health.v1.Health/Check"
TOLD = "/palimpsest.v1.MemoryService/WatchMemory"
STREAM = "/palimpsest.v1.SessionService/AppendChunks"

pytestmark = pytest.mark.timeout(180)


def opening() -> bytes:
    opened = session_service_pb2.AppendChunksRequest.Open(session="s", producer_id="p", epoch=1)
    return session_service_pb2.AppendChunksRequest(open=opened).SerializeToString()


async def ended(call: Any) -> palimpsest.PalimpsestError:
    """Returns why a stream of raw bytes ended; each of its responses is passed over."""
    try:
        while await call.read() is not aio.EOF:
            pass
        await raise_status(call)
    except aio.AioRpcError as error:
        return _errors.from_rpc(error, "test")


async def test_malformed_messages_are_refused_with_a_reason_and_counted(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider(metric_readers=[reader], shutdown_on_exit=False)
    monkeypatch.setattr(telemetry, "meter", lambda: provider.get_meter("test"))
    async with serving_client(url) as client:
        await client.create_session("s")
        channel: Any = client.channel
        said = [await refused(channel.unary_unary(one)(MALFORMED)) for one in (UNARY, HEALTH)]
        said.append(await ended(channel.unary_stream(TOLD)(MALFORMED)))
        for frames in ([MALFORMED], [opening(), MALFORMED]):
            call: Any = client.channel.stream_stream(STREAM)()
            for frame in frames:
                await call.write(frame)
            said.append(await ended(call))
    assert [(type(one), one.reason) for one in said] == [
        (palimpsest.InvalidArgument, "REQUEST_MALFORMED")
    ] * 5
    assert len({str(one) for one in said}) == 1, "these are our words, not the library's"
    assert counted(reader)["SessionService/GetSession", "INVALID_ARGUMENT"] == 1
    assert counted(reader)["SessionService/AppendChunks", "INVALID_ARGUMENT"] == 2


def counted(reader: InMemoryMetricReader) -> dict[tuple[str, str], int]:
    """Returns how many calls there were, by method and code."""
    data: Any = reader.get_metrics_data()
    return {
        (
            point.attributes["rpc.method"].removeprefix("palimpsest.v1."),
            point.attributes["rpc.response.status_code"],
        ): point.count
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        for point in metric.data.data_points
        if "rpc.response.status_code" in point.attributes
    }


async def test_a_call_that_ends_without_its_message_is_refused(url: str) -> None:
    async with serving_client(url) as client:
        # On the wire a unary call is a stream of one message.
        call: Any = client.channel.stream_unary(UNARY)(iter(()))
        assert (await refused(call)).reason == "REQUEST_MALFORMED"
        call = client.channel.stream_stream(STREAM)()
        await call.done_writing()
        assert await call.read() is aio.EOF
        assert await call.code() is grpc.StatusCode.OK, "it asked for nothing"


async def test_a_message_that_never_comes_ends_its_call(url: str) -> None:
    async with serving_client(url, message_seconds=1) as client:
        await client.create_session("s")
        for method in (UNARY, STREAM):
            silent: Any = client.channel.stream_stream(method)()
            said = await ended(silent)
            assert isinstance(said, palimpsest.DeadlineExceeded)
            assert (said.reason, said.metadata) == ("REQUEST_INCOMPLETE", {"limit_seconds": "1"})


async def test_silent_streams_take_no_places_of_calls(url: str) -> None:
    async with (
        serving_client(url, max_calls=2, max_incomplete_messages=2) as client,
        palimpsest.connect(client.address) as attacker,
    ):
        await client.create_session("s")
        silent: list[Any] = [attacker.channel.stream_stream(STREAM)() for _ in range(20)]
        for call in silent:
            # After a second one may have to leave, and takes no place either.
            refused_call = await refusal(call.wait_for_connection())
            assert refused_call is None or refused_call.reason == "TOO_MANY_CALLS"
        session = client.session("s")
        for _ in range(20):
            assert (await session.info()).head == 0
        for call in silent:
            call.cancel()


async def test_a_producer_goes_on_when_its_idle_stream_was_closed(url: str) -> None:
    async with serving_client(url, stream_idle_seconds=1) as client:
        session = await client.create_session("s")
        raw: Any = client.channel.stream_stream(STREAM)()
        async with session.producer("other", give_up_seconds=0.5) as producer:
            await producer.append("before")
            await producer.flush()
            for _ in range(3):
                # As long as the producer's own stream, or longer.
                raw = client.channel.stream_stream(STREAM)()
                await raw.write(opening())
                said = await ended(raw)
                assert isinstance(said, palimpsest.Unavailable)
                assert said.reason == "STREAM_IDLE"
                assert said.retry_seconds
            await producer.append("after")
            await producer.flush()
        assert [chunk.text async for chunk in session.chunks()] == ["before", "after"]


async def test_streams_of_an_overdrawn_connection_go_on_in_turns(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StreamGuard, "is_overdrawn", lambda _, __: True)
    # One place among all of its streams.
    async with serving_client(url, max_incomplete_messages=1) as client:
        session = await client.create_session("s")
        silent: list[Any] = [client.channel.stream_stream(STREAM)() for _ in range(3)]
        for call in silent:
            await call.write(opening())
        async with session.producer("other") as producer:
            await producer.append("text")
            await producer.flush()
        said = [await ended(call) for call in silent]
        assert {one.reason for one in said} == {"STREAM_IDLE"}
        assert [chunk.text async for chunk in session.chunks()] == ["text"]


@pytest.mark.parametrize("limit", ["max_address_calls", "max_tenant_calls"])
async def test_one_address_and_one_tenant_have_a_share(url: str, limit: str) -> None:
    async with serving_client(url, **{limit: 2}) as client:
        session = await client.create_session("s")
        memory = await session.create_memory("m", SCHEMA)
        reads = memory_service_pb2_grpc.MemoryServiceStub(client.channel)
        request = memory_service_pb2.GetMemoryRequest(session="s", memory="m")
        async with AsyncExitStack() as stack:
            for _ in range(2):
                await stack.enter_async_context(memory.watch())
            error = await refused(reads.GetMemory(request))
            assert (error.reason, error.metadata) == ("TOO_MANY_CALLS", {"limit": "2"})
            assert error.retry_seconds
        assert (await memory.get()).revision == 0


async def test_calls_under_way_end_some_time_after_their_connection_is_old(url: str) -> None:
    limits = {"connection_seconds": 1, "connection_grace_seconds": 1}
    async with serving_client(url, **limits) as client:
        session = await client.create_session("s")
        memory = await session.create_memory("m", SCHEMA)
        raw: Any = client.channel.stream_stream(STREAM)()
        async with session.producer("other") as producer, memory.watch() as watch:
            await raw.write(opening())
            assert isinstance(await ended(raw), palimpsest.Unavailable | palimpsest.Cancelled)
            # Our own client opens its streams again.
            await producer.append("text")
            await producer.flush()
            await memory.edit([palimpsest.Edit.put("$.text", "new")])
            assert (await anext(watch)).revision.revision == 1


async def test_a_unix_socket_is_announced_by_its_path(url: str, tmp_path: Path) -> None:
    listen = f"unix:{tmp_path}/api"
    config = Config(database_url=url, listen=listen, stop_seconds=1)  # type: ignore[arg-type]
    stop, ready = asyncio.Event(), asyncio.get_running_loop().create_future()
    running = asyncio.create_task(serve(config, stop, ready.set_result))
    await asyncio.wait((running, ready), return_when=asyncio.FIRST_COMPLETED)
    assert ready.result() == listen
    async with palimpsest.connect(listen) as client:
        await client.create_session("s")
        assert (await client.session("s").info()).head == 0
    stop.set()
    await running


async def test_a_server_takes_so_many_connections(url: str) -> None:
    async with serving(url, max_connections=1) as address:
        async with palimpsest.connect(address) as client:
            await client.create_session("s")
            async with palimpsest.connect(address.replace("127.0.0.1", "localhost")) as beyond:
                with pytest.raises(palimpsest.Unavailable):
                    await beyond.create_session("t")
