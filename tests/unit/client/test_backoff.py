"""How long a unary call waits between its tries."""

import asyncio

import grpc
import pytest
from grpc import aio

import palimpsest
from palimpsest._transport import BACKOFF_SECONDS

TRIES = 12


async def test_who_was_away_for_long_is_not_waited_for_as_long_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    async def method(request: object, *, timeout: float) -> object:
        if len(pauses) < TRIES:
            raise aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, aio.Metadata(), aio.Metadata())
        return request

    async def reached(request: object, *, timeout: float) -> object:
        return request

    monkeypatch.setattr(asyncio, "sleep", sleep)
    async with palimpsest.connect("127.0.0.1:1") as client:
        # A service that was never reached is given up sooner.
        await client.call(reached, "once", timeout=60.0)
        assert await client.call(method, "done", timeout=60.0) == "done"
    assert len(pauses) == TRIES
    assert max(pauses) <= BACKOFF_SECONDS[1]
