"""A client that disconnects ends the model call made for it, down to the connection."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import aio

import palimpsest
from palimpsest import Reading
from palimpsest.v1 import chunks_pb2, session_service_pb2, session_service_pb2_grpc
from service.app import executor, serve, work
from service.settings.config import Config, Limits
from tests.support.unresponsive_model import UnresponsiveModel, unresponsive_model, warm_litellm

SCHEMA = "class Notes:\n    topics: dict[str, list[str]]\n"


@asynccontextmanager
async def process(run: Any, *arguments: Any) -> AsyncIterator[asyncio.Future[Any]]:
    """Yields one of our processes, within this one: `run` gets `stop` and `ready`."""
    stop = asyncio.Event()
    ready: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def is_ready(*said: str) -> None:
        ready.set_result(said)

    running = asyncio.create_task(run(arguments[0], stop, is_ready, *arguments[1:]))
    try:
        await asyncio.wait((running, ready), return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            running.result()
        yield ready
    finally:
        stop.set()
        await running


@asynccontextmanager
async def service(
    url: str, model: UnresponsiveModel, folder: Path, **settings: Any
) -> AsyncIterator[palimpsest.Client]:
    """Yields a client of an API and a worker that share an executor, with one slot for one answer
    unless the settings say otherwise."""
    config = Config(
        database_url=url,  # type: ignore[arg-type]
        listen="127.0.0.1:0",
        model="openai/fake",
        model_base_url=model.url,
        caller_socket=folder / "executor.sock",
        stop_seconds=1,
        limits=Limits(),
        **{"worker_concurrency": 1, **settings},
    )
    assert config.caller_socket is not None
    async with (
        process(executor.call, config, config.caller_socket),
        process(work.work, config),
        process(serve.serve, config) as ready,
        palimpsest.connect(ready.result()[0]) as client,
    ):
        yield client


# litellm makes its call in a thread and awaits it then: a client that leaves in between leaves it.
@pytest.mark.prove
@pytest.mark.filterwarnings("ignore:.*acompletion:pytest.PytestUnraisableExceptionWarning")
async def test_a_deadline_and_a_cancellation_end_the_call_at_the_model(
    url: str, folder: Path
) -> None:
    async with unresponsive_model() as model, service(url, model, folder) as client:
        session = await client.create_session("s")
        async with session.producer("p") as producer:
            for text in ("The museum is closed on Mondays.", "On Tuesdays it is closed early."):
                await producer.append(text)
        async with asyncio.timeout(300):
            await warm_litellm()
            await _search_until_the_deadline(client, model)
            await _cancel_an_answer(session, model)


async def _search_until_the_deadline(client: palimpsest.Client, model: UnresponsiveModel) -> None:
    stub = session_service_pb2_grpc.SessionServiceStub(client.channel)
    request = session_service_pb2.SearchChunksRequest(session="s", query="closed", rerank=True)
    # On a busy machine the time may be up before anything is sent.
    seconds = 2.0
    while not model.requests:
        with pytest.raises(aio.AioRpcError) as caught:
            await stub.SearchChunks(request, timeout=seconds)
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        seconds *= 2
    await model.until(left=len(model.requests))


async def _cancel_an_answer(session: palimpsest.Session, model: UnresponsiveModel) -> None:
    before, told = len(model.requests), list[Any]()
    asking = asyncio.create_task(session.ask("When?", timeout=200, on_event=told.append))
    await model.until(requests=before + 1)
    # The client gets its events by another way than the model its prompt.
    while not told:
        await asyncio.sleep(0.02)
    (answer_id,) = (one.answer for one in told if isinstance(one, Reading))
    assert (await session.cancel_answer(answer_id)).state == "cancelled"
    with pytest.raises(palimpsest.Cancelled):
        await asking
    await model.until(left=before + 1)


@pytest.mark.prove
async def test_memories_whose_model_is_silent_leave_places_to_others(
    url: str, folder: Path
) -> None:
    """There are more of them than places, and each of their calls may wait for minutes."""
    places, waiting = 4, 2
    settings = {"worker_concurrency": places, "silent_concurrency": waiting, "silent_seconds": 1}
    # Else the model may count as unresponsive before it is asked.
    await warm_litellm()
    async with unresponsive_model() as model, service(url, model, folder, **settings) as client:
        session = await client.create_session("s")
        silent = [await session.create_memory(f"m{n}", SCHEMA) for n in range(places + 2)]
        async with session.producer("p") as producer:
            await producer.append("text")
        # More do not come once these have waited for a second.
        async with asyncio.timeout(300):
            await model.until(requests=waiting)
        other = await client.create_session("other")
        good = await other.create_memory("good", SCHEMA, model="offline/extractive")
        async with other.producer("p") as producer:
            await producer.append("text")
            ack = await producer.flush()
        assert ack is not None
        assert (await good.get(after=ack.read_token, timeout=100)).applied_position == 1
        # Their calls continued nevertheless, and nothing counts as failed.
        assert model.left == 0
        states = [await memory.get() for memory in silent]
        assert [state.applied_position for state in states] == [0] * len(silent)
        assert all(state.blocked is None for state in [await one.look() for one in silent])


async def test_a_producer_waits_for_memories_that_are_behind(url: str) -> None:
    config = Config(
        database_url=url,  # type: ignore[arg-type]
        listen="127.0.0.1:0",
        reconcile_seconds=0.2,
        stop_seconds=1,
        limits=Limits(backlog_chunks=3),
    )
    async with (
        process(serve.serve, config) as ready,
        palimpsest.connect(ready.result()[0]) as client,
    ):
        session = await client.create_session("s")
        await session.create_memory("m", SCHEMA, chunk_tokens=1)
        async with session.producer("p", give_up_seconds=200) as producer:
            for number in range(3):
                await producer.append(f"chunk {number}")
            await producer.flush()
            await producer.append("chunk 3")
            flushing = asyncio.create_task(producer.flush())
            too_large = await _refused(client, chunks=4)
            assert isinstance(too_large, palimpsest.InvalidArgument)
            assert too_large.metadata == {"chunks": "4", "limit_chunks": "3"}
            error = await _refused(client)
            assert error.reason == "BACKLOG_FULL"
            assert error.metadata["limit"] == "3"
            assert error.retry_seconds
            assert not flushing.done()
            async with process(work.work, config):
                # The memory gets on, and the producer is let in again by itself.
                ack = await flushing
            assert ack is not None
            assert ack.producer_sequence == 4


async def _refused(client: palimpsest.Client, chunks: int = 1) -> palimpsest.PalimpsestError:
    stub = session_service_pb2_grpc.SessionServiceStub(client.channel)
    request = session_service_pb2.AppendRequest(
        session="s", chunks=[chunks_pb2.Chunk(text="other")] * chunks
    )
    with pytest.raises(aio.AioRpcError) as caught:
        await stub.Append(request)
    return palimpsest._errors.from_rpc(caught.value, client.address)
