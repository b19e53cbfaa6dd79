"""Where a client connects to, and how long it tries a service that it never reached."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from grpc import aio

import palimpsest
from palimpsest import connection, errors, sync
from palimpsest.v1 import sessions_pb2
from tests.unit.client.server import add, serving

#: Longer than a test may take.
FOR_EVER = 3600.0


async def GetSession(request: sessions_pb2.GetSessionRequest, context: Any) -> Any:
    return sessions_pb2.GetSessionResponse(session=sessions_pb2.Session(name=request.name))


def register(server: aio.Server) -> None:
    add(server, "SessionService", "unary", GetSession, sessions_pb2.GetSessionRequest)


async def look(client: palimpsest.Client) -> str:
    session = client.session("s")
    request = sessions_pb2.GetSessionRequest(name="s")
    method = session._sessions.GetSession
    response = await client.call(method, request, timeout=FOR_EVER)
    return str(response.session.name)


def test_the_variable_says_where(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PALIMPSEST_ADDRESS", "127.0.0.1:5")
    with sync.connect() as client:
        assert client.inner.address == "127.0.0.1:5"
    with sync.connect("127.0.0.1:6") as client:
        assert client.inner.address == "127.0.0.1:6"
    monkeypatch.delenv("PALIMPSEST_ADDRESS")
    with sync.connect() as client:
        assert client.inner.address == "127.0.0.1:50051"


async def test_a_service_that_was_never_reached_is_given_up_soon(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection, "REACH_SECONDS", 0.3)
    async with palimpsest.connect("127.0.0.1:1") as client:
        with pytest.raises(errors.ConnectionFailed) as seen:
            await look(client)
    assert "cannot reach Palimpsest at 127.0.0.1:1" in str(seen.value)
    assert "palimpsest up" in str(seen.value), "what to do"
    assert "PALIMPSEST_ADDRESS" in str(seen.value)


async def test_a_service_that_was_reached_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(register) as port:
        client = palimpsest.connect(f"127.0.0.1:{port}")
        assert await look(client) == "s"
    # It is away now, and no try is left but for the first connection.
    monkeypatch.setattr(connection, "REACH_SECONDS", 0.0)
    tried: list[float] = []
    back: list[Any] = []

    async def come_back(seconds: float) -> None:
        tried.append(seconds)
        if len(tried) == 3:
            back.append(serving(register, port))
            await back[0].__aenter__()
            await client.channel.channel_ready()

    clock = SimpleNamespace(get_running_loop=asyncio.get_running_loop, sleep=come_back)
    monkeypatch.setattr(connection, "asyncio", clock)
    try:
        async with client:
            assert await look(client) == "s"
    finally:
        await back[0].__aexit__(None, None, None)
    assert len(tried) == 3
