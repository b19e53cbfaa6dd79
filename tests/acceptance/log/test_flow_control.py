"""Flow control: slow consumers slow down their producers, and every queue is bounded."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import grpc
import psycopg
import pytest
from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

import palimpsest
from palimpsest import Edit, _errors
from palimpsest.v1 import (
    chunks_pb2,
    memory_service_pb2,
    memory_service_pb2_grpc,
    session_service_pb2,
    session_service_pb2_grpc,
)
from service.app.serve import serve
from service.settings.config import Config, Limits
from service.usecases.memories import watch as watching
from service.usecases.memories.watch import Watches
from tests.support.cutting import relayed
from tests.support.harness import Servers

SCHEMA = "class Notes:\n    topics: dict[str, list[str]]\n    text: str\n"
CREDIT_CHUNKS = 20


@asynccontextmanager
async def serving(url: str, **limits: Any) -> AsyncIterator[str]:
    """Yields a server in this process; its address."""
    config = Config(
        database_url=url,  # type: ignore[arg-type]
        listen="127.0.0.1:0",
        stop_seconds=1,
        limits=Limits(**limits),
    )
    stop, ready = asyncio.Event(), asyncio.get_running_loop().create_future()
    running = asyncio.create_task(serve(config, stop, ready.set_result))
    try:
        await asyncio.wait((running, ready), return_when=asyncio.FIRST_COMPLETED)
        yield ready.result()
    finally:
        stop.set()
        await running


@asynccontextmanager
async def serving_client(url: str, **limits: Any) -> AsyncIterator[palimpsest.Client]:
    async with serving(url, **limits) as address, palimpsest.connect(address) as client:
        yield client


async def settled(look: Any) -> Any:
    """Returns the result of `look()` once it has not changed for a while."""
    last, same = look(), 0
    async with asyncio.timeout(150):
        while same < 10:
            await asyncio.sleep(0.05)
            same = same + 1 if look() == last else 0
            last = look()
    return last


async def refused(call: Any) -> palimpsest.PalimpsestError:
    error = await refusal(call)
    assert error is not None, "it was let in"
    return error


async def refusal(call: Any) -> palimpsest.PalimpsestError | None:
    """Returns why a call is refused; None when it is not."""
    try:
        await call
    except aio.AioRpcError as error:
        return _errors.from_rpc(error, "test")
    return None


def batch(session: str, text: str) -> session_service_pb2.AppendRequest:
    return session_service_pb2.AppendRequest(
        session=session, chunks=[chunks_pb2.Chunk(text=text)], request_id="r"
    )


async def test_a_producer_waits_at_its_credit_for_a_database_that_stands_still(url: str) -> None:
    texts = [f"chunk {number}" for number in range(5 * CREDIT_CHUNKS)]
    taken: list[int] = []
    async with (
        relayed(url) as (relay, through),
        serving_client(through, credit_chunks=CREDIT_CHUNKS) as client,
    ):
        session = await client.create_session("s")
        async with session.producer("p") as producer:
            await producer.append(texts[0])
            await producer.flush()
            relay.hold()

            async def produce() -> None:
                for text in texts[1:]:
                    taken.append(await producer.append(text))

            producing = asyncio.create_task(produce())
            async with asyncio.timeout(150):
                while len(taken) < CREDIT_CHUNKS:
                    await asyncio.sleep(0.01)
            assert await settled(lambda: len(taken)) == CREDIT_CHUNKS
            assert not producing.done()
            relay.release()
            await producing
        assert [chunk.text async for chunk in session.chunks()] == texts


async def test_appends_that_are_not_written_are_bounded_for_the_whole_server(
    url: str, servers: Servers
) -> None:
    """Streams are not read on, single appends are refused; both continue when there is room."""
    text = "x" * 20_000
    async with serving_client(url, max_unwritten_bytes=50_000, credit_chunks=8) as client:
        stub = session_service_pb2_grpc.SessionServiceStub(client.channel)
        session, other = await client.create_session("s"), await client.create_session("other")
        async with (
            session.producer("p") as producer,
            await psycopg.AsyncConnection.connect(servers.as_superuser(url)) as blocker,
        ):
            await blocker.execute("SELECT FROM session WHERE name = 's' FOR UPDATE")
            for _ in range(8):
                await producer.append(text)
            # One is with the database; what was read besides is beyond the bound.
            async with asyncio.timeout(150):
                # Until that is read there is room: the same chunk is then written, once.
                while (error := await refusal(stub.Append(batch("other", "small")))) is None:
                    await asyncio.sleep(0.01)
            assert error.reason == "TOO_MUCH_UNWRITTEN"
            assert isinstance(error, palimpsest.ResourceExhausted)
            assert error.metadata == {"limit_bytes": "50000"}
            assert error.retry_seconds
            await blocker.rollback()
            await producer.flush()
        await stub.Append(batch("other", "small"))
        assert len([chunk async for chunk in session.chunks()]) == 8
        assert [chunk.text async for chunk in other.chunks()] == ["small"]


async def test_calls_of_a_server_are_bounded_and_it_stays_healthy(url: str) -> None:
    async with serving_client(url, max_calls=2) as client:
        session = await client.create_session("s")
        memory = await session.create_memory("m", SCHEMA)
        async with AsyncExitStack() as stack:
            for _ in range(2):
                await stack.enter_async_context(memory.watch())
            reads = memory_service_pb2_grpc.MemoryServiceStub(client.channel)
            request = memory_service_pb2.GetMemoryRequest(session="s", memory="m")
            error = await refused(reads.GetMemory(request))
            assert (error.reason, error.metadata) == ("TOO_MANY_CALLS", {"limit": "2"})
            assert error.retry_seconds
            health = health_pb2_grpc.HealthStub(client.channel)
            said = await health.Check(health_pb2.HealthCheckRequest())
            assert said.status == health_pb2.HealthCheckResponse.SERVING
            # The client comes again by itself.
            reading = asyncio.create_task(memory.get())
            await asyncio.sleep(0.1)
            assert not reading.done()
        assert (await reading).revision == 0


@pytest.mark.prove
async def test_reads_that_wait_are_bounded(url: str) -> None:
    async with serving_client(url, max_waiting_reads=1) as client:
        session = await client.create_session("s")
        memory = await session.create_memory("m", SCHEMA)
        async with session.producer("p") as producer:
            await producer.append("text")
        first = asyncio.create_task(memory.get(fully_applied=True, timeout=300))
        async with asyncio.timeout(150):
            while (error := await too_many(memory)) is None:
                # It came before the first, which comes again by itself.
                await asyncio.sleep(0.3)
        assert error.reason == "TOO_MANY_READS"
        assert (await memory.get()).revision == 0, "what does not wait takes no place"
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        with pytest.raises(palimpsest.DeadlineExceeded):
            await memory.get(fully_applied=True, timeout=2)


async def too_many(memory: palimpsest.Memory) -> palimpsest.ResourceExhausted | None:
    """Returns the refusal of a read that would wait; None when it waited."""
    try:
        await memory.get(fully_applied=True, timeout=0.5)
    except palimpsest.ResourceExhausted as refused:
        return refused
    except palimpsest.DeadlineExceeded:
        return None
    raise AssertionError("nothing is applied without a worker")


async def test_a_watch_that_is_not_read_is_not_read_ahead_and_delays_no_other(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server buffers the result of one read and gRPC's window, and reads no more."""
    told: dict[str, int] = {}
    read = Watches._read

    async def counted(self: Any, tenant_id: Any, stored: Any, after: int) -> Any:
        found = await read(self, tenant_id, stored, after)
        told[stored.name] = told.get(stored.name, 0) + len(found)
        return found

    monkeypatch.setattr(Watches, "_read", counted)
    monkeypatch.setattr(watching, "READ_BYTES", 200_000)
    # The window of the connection stays as it begins, 64 KiB.
    options = (("grpc.http2.bdp_probe", 0),)
    revisions, text = 30, "x" * 60_000
    async with serving_client(url) as client:
        session = await client.create_session("s")
        memory = await session.create_memory("m", SCHEMA)
        for number in range(revisions):
            await memory.edit([Edit.put("$.text", text + str(number))])
        other = await session.create_memory("n", SCHEMA)
        async with aio.insecure_channel(client.address, options=options) as channel:
            stub = memory_service_pb2_grpc.MemoryServiceStub(channel)
            request = memory_service_pb2.WatchMemoryRequest(
                session="s", memory="m", after_revision=0
            )
            unread: Any = stub.WatchMemory(request)
            await unread.read()
            assert await settled(lambda: sum(told.values())) < revisions / 2
            async with other.watch() as watch, asyncio.timeout(150):
                for number in range(5):
                    await other.edit([Edit.put("$.text", str(number))])
                    assert (await anext(watch)).revision.revision == number + 1
            # It was only held back.
            for number in range(revisions):
                assert (await unread.read()).revision.revision == number + 1
            unread.cancel()


async def test_a_server_that_is_too_large_a_message_says_so(url: str) -> None:
    async with serving_client(url, max_message_bytes=100_000) as client:
        stub = session_service_pb2_grpc.SessionServiceStub(client.channel)
        with pytest.raises(aio.AioRpcError) as caught:
            await stub.Append(batch("s", "x" * 100_001))
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
