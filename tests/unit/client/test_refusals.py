"""What the client makes again when the service refuses it, and what it never does."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from grpc import aio

import palimpsest
from palimpsest.v1 import (
    answer_service_pb2,
    answer_service_pb2_grpc,
    session_service_pb2,
    session_service_pb2_grpc,
)
from service.domain.values.errors import Cancelled, Exhausted, PalimpsestError, Unavailable
from service.domain.values.reasons import Reason
from service.rpc.errors import abort_arguments
from tests.unit.client.server import add, serving

SOON = 0.01
FULL = Exhausted(Reason.TOO_MANY_CALLS, "full", {"limit": "1"}, retry_seconds=SOON)
ASKED = Exhausted(Reason.TOO_MANY_ASKS, "full", {"limit": "1"}, retry_seconds=SOON)
PENDING = Exhausted(Reason.TOO_MANY_PENDING, "full", {"limit": "1"}, retry_seconds=SOON)
UNWRITTEN = Exhausted(Reason.TOO_MUCH_UNWRITTEN, "full", {}, retry_seconds=SOON)
AWAY = Unavailable(Reason.DATABASE_UNAVAILABLE, "away", retry_seconds=SOON)
GIVEN_UP = Cancelled(Reason.ANSWER_CANCELLED, "cancelled", {"answer": "a"})
#: What gRPC itself says of a server that is full or stops.
BARE = None


class Sessions:
    """Refuses its first calls as the test says."""

    def __init__(self, refusals: list[PalimpsestError | None]) -> None:
        self._refusals = refusals
        self.calls = 0

    async def GetSession(self, request: Any, context: Any) -> Any:
        await self._refuse(context)
        return session_service_pb2.Session()

    async def Ask(self, request: Any, context: Any) -> AsyncIterator[Any]:
        await self._refuse(context)
        yield answer_service_pb2.AskEvent(reading=answer_service_pb2.AskEvent.Reading(answer="a"))

    async def _refuse(self, context: Any) -> None:
        self.calls += 1
        if self.calls > len(self._refusals):
            return
        error = self._refusals[self.calls - 1]
        if error is BARE:
            await context.abort(grpc.StatusCode.CANCELLED)
        else:
            await context.abort(*abort_arguments(error))

    def register(self, server: aio.Server) -> None:
        add(
            server,
            "SessionService",
            "unary",
            self.GetSession,
            session_service_pb2.GetSessionRequest,
        )
        add(server, "AnswerService", "told", self.Ask, answer_service_pb2.AskRequest)


@asynccontextmanager
async def connected(sessions: Sessions) -> AsyncIterator[palimpsest.Client]:
    async with (
        serving(sessions.register) as port,
        palimpsest.connect(f"127.0.0.1:{port}") as client,
    ):
        yield client


async def get(client: palimpsest.Client, **options: Any) -> Any:
    stub = session_service_pb2_grpc.SessionServiceStub(client.channel)
    return await client.call(
        stub.GetSession, session_service_pb2.GetSessionRequest(session="s"), **options
    )


@pytest.mark.parametrize("refusal", [BARE, FULL, UNWRITTEN, AWAY])
async def test_what_may_be_done_twice_is_made_again(refusal: PalimpsestError | None) -> None:
    sessions = Sessions([refusal, refusal])
    async with connected(sessions) as client:
        await get(client)
    assert sessions.calls == 3


async def test_what_was_cancelled_for_a_reason_is_not_made_again() -> None:
    sessions = Sessions([GIVEN_UP])
    async with connected(sessions) as client:
        with pytest.raises(palimpsest.Cancelled) as caught:
            await get(client)
    assert caught.value.reason == "ANSWER_CANCELLED"
    assert sessions.calls == 1


@pytest.mark.parametrize("refusal", [FULL, ASKED, PENDING])
async def test_what_was_not_begun_is_always_made_again(refusal: PalimpsestError) -> None:
    sessions = Sessions([refusal, refusal])
    async with connected(sessions) as client:
        await get(client, retry=False)
    assert sessions.calls == 3


@pytest.mark.parametrize("refusal", [BARE, UNWRITTEN, AWAY])
async def test_what_may_have_been_done_is_not_done_twice(refusal: PalimpsestError | None) -> None:
    sessions = Sessions([refusal])
    async with connected(sessions) as client:
        with pytest.raises(palimpsest.PalimpsestError):
            await get(client, retry=False)
    assert sessions.calls == 1


async def test_a_call_without_time_for_the_delay_fails_at_once() -> None:
    later = Exhausted(Reason.TOO_MANY_CALLS, "full", {"limit": "1"}, retry_seconds=3600)
    sessions = Sessions([later])
    async with connected(sessions) as client:
        with pytest.raises(palimpsest.ResourceExhausted) as caught:
            await get(client, timeout=60)
    assert caught.value.retry_seconds == 3600
    assert sessions.calls == 1


@pytest.mark.parametrize(("refusal", "calls"), [(FULL, 3), (PENDING, 3), (BARE, 1), (AWAY, 1)])
async def test_a_stream_is_made_again_where_it_was_not_begun(
    refusal: PalimpsestError | None, calls: int
) -> None:
    sessions = Sessions([refusal, refusal])
    async with connected(sessions) as client:
        stub = answer_service_pb2_grpc.AnswerServiceStub(client.channel)
        told = client._connection.responses(
            stub.Ask, answer_service_pb2.AskRequest(session="s", query="q")
        )
        if calls == 1:
            with pytest.raises(aio.AioRpcError):
                await anext(told)
        else:
            assert (await anext(told)).reading.answer == "a"
    assert sessions.calls == calls
