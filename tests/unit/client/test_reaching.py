"""Where a client connects to, and how long it tries a service that it never reached."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest
from grpc import aio

import palimpsest
from palimpsest import sync
from palimpsest._async import _connection
from palimpsest.v1 import memory_service_pb2, session_service_pb2
from tests.unit.client.server import add, serving

#: Longer than a test may take.
FOR_EVER = 3600.0


async def GetSession(request: session_service_pb2.GetSessionRequest, context: Any) -> Any:
    return session_service_pb2.Session(id=request.session)


async def AppendChunks(
    requests: AsyncIterator[session_service_pb2.AppendChunksRequest], context: Any
) -> AsyncIterator[session_service_pb2.AppendChunksResponse]:
    opened = session_service_pb2.AppendChunksResponse.Opened(
        credits=session_service_pb2.AppendChunksResponse.Credits(chunks=9, bytes=9999)
    )
    yield session_service_pb2.AppendChunksResponse(opened=opened)
    await asyncio.Event().wait()


async def WatchMemory(
    request: memory_service_pb2.WatchMemoryRequest, context: Any
) -> AsyncIterator[memory_service_pb2.WatchMemoryResponse]:
    yield memory_service_pb2.WatchMemoryResponse(resume_token="t")
    await asyncio.Event().wait()


def register(server: aio.Server) -> None:
    add(server, "SessionService", "unary", GetSession, session_service_pb2.GetSessionRequest)
    add(server, "SessionService", "streams", AppendChunks, session_service_pb2.AppendChunksRequest)
    add(server, "MemoryService", "told", WatchMemory, memory_service_pb2.WatchMemoryRequest)


async def look(client: palimpsest.Client) -> str:
    session = client.session("s")
    request = session_service_pb2.GetSessionRequest(session="s")
    method = session._connection.sessions.GetSession
    response = await client.call(method, request, timeout=FOR_EVER)
    return str(response.id)


def test_the_variable_says_where(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PALIMPSEST_ADDRESS", "127.0.0.1:5")
    with sync.connect() as client:
        assert client.address == "127.0.0.1:5"
    with sync.connect("127.0.0.1:6") as client:
        assert client.address == "127.0.0.1:6"
    monkeypatch.delenv("PALIMPSEST_ADDRESS")
    with sync.connect() as client:
        assert client.address == "127.0.0.1:50051"


async def produce(client: palimpsest.Client) -> None:
    async with client.session("s").producer("p", give_up_seconds=FOR_EVER):
        pass


async def append(client: palimpsest.Client) -> None:
    await client.session("s").append("text", timeout=FOR_EVER)


async def watch(client: palimpsest.Client) -> None:
    async with client.session("s").memory("m").watch(give_up_seconds=FOR_EVER):
        pass


@pytest.mark.parametrize("use", [look, produce, append, watch])
async def test_a_service_that_was_never_reached_is_given_up_soon(
    use: Callable[[palimpsest.Client], Coroutine[Any, Any, object]],
) -> None:
    async with palimpsest.connect("127.0.0.1:1", reach_seconds=0.3) as client:
        with pytest.raises(palimpsest.ConnectionFailed) as seen:
            await use(client)
    assert "cannot reach Palimpsest at 127.0.0.1:1" in str(seen.value)
    assert "palimpsest up" in str(seen.value), "what to do"
    assert "PALIMPSEST_ADDRESS" in str(seen.value)
    assert "connect(reach_seconds=60) waits longer than 0.3 s" in str(seen.value)


@pytest.mark.prove
async def test_what_takes_connections_and_says_nothing_is_given_up_too() -> None:
    async with await asyncio.start_server(lambda *_: None, "127.0.0.1", 0) as silent:
        host, port = silent.sockets[0].getsockname()
        async with palimpsest.connect(f"{host}:{port}", reach_seconds=0.3) as client:
            with pytest.raises(palimpsest.ConnectionFailed, match="cannot reach Palimpsest"):
                await produce(client)


async def test_a_service_that_was_reached_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(register) as port:
        # No try but the first, as long as it was never reached.
        client = palimpsest.connect(f"127.0.0.1:{port}", reach_seconds=0.0)
        assert await look(client) == "s"
    tried: list[float] = []
    back: list[Any] = []

    async def come_back(seconds: float) -> None:
        tried.append(seconds)
        if len(tried) == 3:
            back.append(serving(register, port))
            await back[0].__aenter__()
            await client.channel.channel_ready()

    monkeypatch.setattr(_connection, "sleep", come_back)
    try:
        async with client:
            assert await look(client) == "s"
    finally:
        await back[0].__aexit__(None, None, None)
    assert len(tried) == 3


@pytest.mark.prove
@pytest.mark.parametrize("use", [produce, watch])
async def test_streams_are_opened_again_when_it_comes_back(
    use: Callable[[palimpsest.Client], Coroutine[Any, Any, object]],
) -> None:
    async with serving(register) as port:
        client = palimpsest.connect(f"127.0.0.1:{port}", reach_seconds=0.0)
        await use(client)
    async with client:
        again = asyncio.create_task(use(client))
        # It is away: one that was never reached would have ended.
        done, _ = await asyncio.wait([again], timeout=1)
        assert not done
        async with serving(register, port):
            await again
