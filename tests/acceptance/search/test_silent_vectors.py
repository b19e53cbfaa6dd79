"""Searches whose embedding server hears a query and says nothing."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from grpc import aio

import palimpsest
from palimpsest.v1 import session_service_pb2, session_service_pb2_grpc
from service.app.serve import serve
from service.settings.config import Config
from storage.engine.database import Database
from tests.acceptance.log.test_flow_control_models import process
from tests.integration.support.search_rows import (
    can_have_vectors,
    make_session,
    whole,
    write_vectors,
)
from tests.support.harness import Servers
from tests.support.unresponsive_model import UnresponsiveModel, unresponsive_model

MODEL = "openai/vectors"


@asynccontextmanager
async def served(
    url: str, servers: Servers, model: UnresponsiveModel, **settings: Any
) -> AsyncIterator[palimpsest.Client]:
    """Yields an API on a database in which the session `s` has a vector of the model's."""
    if not can_have_vectors(servers.as_superuser(url)):
        pytest.skip("this PostgreSQL has no pgvector")
    database = Database.connect(url, pool_size=1, name="test")
    await make_session(database, ["The wolf ran.", "The sea was calm."])
    await write_vectors(database, [(1, whole("The wolf ran.", 1, 0, 0))], model=MODEL)
    await database.close()
    config = Config(
        database_url=url,  # type: ignore[arg-type]
        listen="127.0.0.1:0",
        embedding_model=MODEL,
        embedding_base_url=model.url,
        stop_seconds=1,
        **settings,
    )
    async with (
        process(serve, config) as ready,
        palimpsest.connect(ready.result()[0]) as client,
    ):
        yield client


def wanted(query: str, mode: Any) -> session_service_pb2.SearchChunksRequest:
    # The vector of a query is kept: each test of one needs its own.
    return session_service_pb2.SearchChunksRequest(session="s", query=query, mode=mode)


async def until_heard(
    client: palimpsest.Client,
    model: UnresponsiveModel,
    request: session_service_pb2.SearchChunksRequest,
) -> None:
    """Searches until the server of vectors has heard of it before the time was up."""
    stub = session_service_pb2_grpc.SessionServiceStub(client.channel)
    # litellm's first call takes seconds before anything is sent.
    before, seconds = len(model.requests), 2.0
    while len(model.requests) == before:
        with pytest.raises(aio.AioRpcError) as caught:
            await stub.SearchChunks(request, timeout=seconds)
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        seconds *= 2


@pytest.mark.prove
async def test_a_search_ends_at_its_deadline_and_takes_its_call_for_a_vector_along(
    url: str, servers: Servers
) -> None:
    async with unresponsive_model() as model, served(url, servers, model) as client:
        async with asyncio.timeout(300):
            await until_heard(client, model, wanted("wolf", session_service_pb2.SEARCH_MODE_HYBRID))
            await model.until(left=len(model.requests))
            stub = session_service_pb2_grpc.SessionServiceStub(client.channel)
            heard = len(model.requests)
            gone = stub.SearchChunks(wanted("wolf", session_service_pb2.SEARCH_MODE_HYBRID))
            await model.until(requests=heard + 1)
            gone.cancel()
            await model.until(left=heard + 1)
            await until_kept(client, len(model.requests))


async def until_kept(client: palimpsest.Client, calls: int) -> None:
    """Waits until so many calls are in the ledger: none is left under way."""
    session = client.session("s")
    while (total := (await session.usage()).total).calls + total.failed_calls < calls:
        await asyncio.sleep(0.1)


async def test_after_the_patience_with_its_model_a_search_goes_by_words_and_says_so(
    url: str, servers: Servers
) -> None:
    async with (
        unresponsive_model() as model,
        served(url, servers, model, embedding_timeout_seconds=0.5) as client,
        asyncio.timeout(300),
    ):
        session = client.session("s")
        found = await session.search("wolf", timeout=250)
        assert found.mode == "words"
        assert [one.chunk.position for one in found.results] == [1]
        assert "could not be embedded" in found.index.failure
        assert (await session.search_index()).failure == ""
        stub = session_service_pb2_grpc.SessionServiceStub(client.channel)
        request = wanted("wolf", session_service_pb2.SEARCH_MODE_HYBRID)
        with pytest.raises(palimpsest.Unavailable) as refused:
            await client.call(stub.SearchChunks, request, timeout=250, retry=False)
        assert refused.value.reason == "EMBEDDING_FAILED"
        assert refused.value.retry_seconds
        await model.until(left=len(model.requests))


@pytest.mark.prove
async def test_before_its_deadline_a_search_goes_by_words_and_takes_its_call_along(
    url: str, servers: Servers
) -> None:
    async with (
        unresponsive_model() as model,
        served(url, servers, model, embedding_timeout_seconds=250) as client,
        asyncio.timeout(300),
    ):
        # litellm's import can keep a whole server waiting: that is over after this.
        await until_heard(client, model, wanted("wolf", session_service_pb2.SEARCH_MODE_HYBRID))
        heard = len(model.requests)
        found = await client.session("s").search("wolf", timeout=12)
        assert found.mode == "words"
        assert [one.chunk.position for one in found.results] == [1]
        assert "deadline" in found.index.failure
        await model.until(requests=heard + 1, left=heard + 1)
        await until_kept(client, heard + 1)


async def test_a_recall_goes_by_words_when_its_query_is_not_embedded_in_time(
    url: str, servers: Servers
) -> None:
    async with (
        unresponsive_model() as model,
        served(
            url, servers, model, embedding_timeout_seconds=10, recall_embedding_seconds=0.5
        ) as client,
        asyncio.timeout(300),
    ):
        # No deadline of the client's ends the wait.
        found = await client.session("s").recall("wolf", timeout=250)
        assert "The wolf ran." in found.text
        stub = session_service_pb2_grpc.SessionServiceStub(client.channel)
        request = session_service_pb2.RecallRequest(session="s", query="wolf")
        response = await client.call(stub.Recall, request, timeout=250)
        assert response.mode == session_service_pb2.SEARCH_MODE_WORDS
        assert "its own limit" in response.index.failure
        # The calls go on, each as long as its own limit allows.
        await model.until(left=len(model.requests))
