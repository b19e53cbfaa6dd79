"""SIGTERM at real processes under traffic: they end in time, and others continue at once."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import grpc
import psycopg
import pytest

import palimpsest
from palimpsest.v1 import chunks_pb2, session_service_pb2, session_service_pb2_grpc
from tests.acceptance.memories.kept_memory import SCHEMA, HeldReplies, finish, start
from tests.support.fake_model import FakeModel, fake_model
from tests.support.harness import Process, Servers, api, eventually, worker

pytestmark = pytest.mark.timeout(400)
#: No worker is declared dead and no work is found by polling: what continues was handed over.
HANDED_OVER_ONLY = {
    "PALIMPSEST_DEAD_AFTER_SECONDS": "3600",
    "PALIMPSEST_HEARTBEAT_SECONDS": "600",
    "PALIMPSEST_RECONCILE_SECONDS": "3600",
}
#: The time to stop of the tests' processes, and how long a busy machine may take besides.
STOP_SECONDS = 2
SLACK_SECONDS = 150
#: Chunks that a memory has to read one by one, and the one at which its worker is stopped.
STEPS = 20
BEGUN = 5


@pytest.fixture
def model() -> Iterator[FakeModel]:
    with fake_model() as model:
        yield model


def environment(model: FakeModel, stop_seconds: float = STOP_SECONDS) -> dict[str, str]:
    return {
        **HANDED_OVER_ONLY,
        "PALIMPSEST_STOP_SECONDS": str(stop_seconds),
        **model.settings,
        # Longer than any test holds a reply back: another try would be another payment.
        "PALIMPSEST_MODEL_TIMEOUT_SECONDS": "600",
    }


def stop(process: Process) -> None:
    """SIGTERM; it has to end by itself, and without an error."""
    process._popen.terminate()
    assert process.wait(STOP_SECONDS + SLACK_SECONDS) == 0, process.log()


@pytest.mark.prove
def test_a_worker_that_stops_in_a_slow_call_hands_over_and_nothing_is_paid_twice(
    servers: Servers, model: FakeModel
) -> None:
    url = servers.new_database()
    held = HeldReplies(model)
    with api(url) as (_, address):
        with worker(url, **environment(model)) as first:
            _, token = asyncio.run(start(address, ["only chunk"]))
            assert held.asked.wait(150)
            indexed(servers, url)
            stop(first)
        assert in_hand(servers, url) == (0,)
        with worker(url, **environment(model)):
            held.go.set()
            revision, position, _ = asyncio.run(finish(address, token))
    assert (revision, position) == (1, 1)
    assert len(model.prompts) == 1


def test_a_worker_that_stops_between_two_steps_leaves_the_rest_to_others(
    servers: Servers, model: FakeModel
) -> None:
    url = servers.new_database()
    texts = [f"chunk {number}" for number in range(STEPS)]
    told, ended = threading.Event(), threading.Event()

    def reply(number: int) -> str:
        if number == BEGUN:
            assert told.wait(150)
        elif number > BEGUN:
            # So that it hears that it is to stop long before all is done.
            ended.wait(0.5)
        return f'[OBJECTS FOR ADD]\n{{"$.topics.t{number}": {{"add": ["x"]}}}}'

    model.reply = reply
    with api(url) as (_, address):
        with worker(url, **environment(model, stop_seconds=30)) as first:
            _, token = asyncio.run(start(address, texts))
            # On a busy machine it takes long until the first call: the executor has to start.
            eventually("it has begun", lambda: len(model.prompts) == BEGUN)
            indexed(servers, url)
            first._popen.terminate()
            told.set()
            assert first.wait(30 + SLACK_SECONDS) == 0, first.log()
            assert "Traceback" not in first.log()
        ended.set()
        assert in_hand(servers, url) == (0,)
        paid = len(model.prompts)
        with worker(url, **environment(model)):
            revision, position, ranges = asyncio.run(finish(address, token))
    assert (revision, position) == (STEPS, STEPS)
    assert ranges == [(n, n + 1) for n in range(STEPS)]
    assert len(model.prompts) == STEPS
    assert paid < STEPS, "else nothing was handed over"


def in_hand(servers: Servers, url: str) -> object:
    """Returns how many items workers have in hand."""
    with psycopg.connect(servers.as_superuser(url)) as look:
        return look.execute("SELECT count(*) FROM claim").fetchone()


def indexed(servers: Servers, url: str) -> None:
    """Waits until words are indexed, which is done beside the memory."""
    query = "SELECT count(*) FROM session WHERE has_unindexed"
    with psycopg.connect(servers.as_superuser(url), autocommit=True) as look:
        eventually("words are indexed", lambda: look.execute(query).fetchone() == (0,))


def test_an_executor_that_stops_finishes_what_it_began(
    servers: Servers, model: FakeModel, folder: Path
) -> None:
    url = servers.new_database()
    held = HeldReplies(model)
    at = folder / "executor.sock"
    settings = {**environment(model, stop_seconds=30), "PALIMPSEST_DATABASE_URL": url}
    executor = Process(f"executor --socket {at}", settings, "calling")
    shared = {**environment(model), "PALIMPSEST_CALLER_SOCKET": str(at)}
    try:
        with api(url) as (_, address), worker(url, **shared):
            _, token = asyncio.run(start(address, ["only chunk"]))
            assert held.asked.wait(200)
            executor._popen.terminate()
            held.go.set()
            assert executor.wait(SLACK_SECONDS) == 0, executor.log()
            assert asyncio.run(finish(address, token))[:2] == (1, 1)
    finally:
        executor.close()
    assert len(model.prompts) == 1


class Front:
    """One address for servers that start and stop, as a load balancer has."""

    def __init__(self) -> None:
        #: Where new connections go.
        self.to = ""
        self.address = ""
        self._tasks: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def open(self) -> AsyncIterator["Front"]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            server.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        host, _, port = self.to.rpartition(":")
        with suppress(OSError):
            theirs, ours = await asyncio.open_connection(host, int(port))
            await asyncio.gather(self._pass(reader, ours), self._pass(theirs, writer))
        writer.close()

    @staticmethod
    async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()


CHUNKS = 60


@pytest.mark.prove
def test_a_server_that_stops_is_followed_by_another_and_no_client_notices(
    servers: Servers, model: FakeModel
) -> None:
    url = servers.new_database()
    settings = {"PALIMPSEST_STOP_SECONDS": "30"}
    release = threading.Event()

    def reply(number: int) -> str:
        # The answer to the question is made once the first server has gone.
        if "Which?" in model.prompts[number - 1]:
            assert release.wait(200)
            return "None."
        return f'[OBJECTS FOR ADD]\n{{"$.topics.t{number}": {{"add": ["x"]}}}}'

    model.reply = reply

    async def clients(first: Process, before: str, behind: str) -> None:
        async with Front().open() as front:
            front.to = before
            async with palimpsest.connect(front.address) as client:
                session = await client.create_session("s")
                memory = await session.create_memory("m", schema_source=SCHEMA, chunk_tokens=1)
                watched: list[int] = []
                watching = asyncio.create_task(watch(memory, watched))
                asking = asyncio.create_task(memory.ask("Which?", timeout=300))
                await until("the question is with the model", lambda: asked(model))
                async with session.producer("p") as producer:
                    for number in range(CHUNKS):
                        await producer.append(f"chunk {number}")
                        if number == CHUNKS // 2:
                            front.to = behind
                            first._popen.terminate()
                        await asyncio.sleep(0.01)
                    ack = await producer.flush()
                assert ack is not None
                assert ack.position == CHUNKS
                assert await asyncio.to_thread(first.wait, SLACK_SECONDS) == 0, first.log()
                release.set()
                assert (await asking).state == "done"
                state = await memory.get(after=ack.read_token, timeout=200)
                await watching
                assert watched == list(range(1, state.revision + 1))
                texts = [chunk.text async for chunk in session.chunks()]
                assert texts == [f"chunk {number}" for number in range(CHUNKS)]

    with api(url, **settings) as (first, before), api(url, **settings) as (_, behind):
        with worker(url, **environment(model)):
            asyncio.run(clients(first, before, behind))


async def until(what: str, look: object) -> None:
    await asyncio.to_thread(eventually, what, look)


def asked(model: FakeModel) -> bool:
    return any("Which?" in prompt for prompt in model.prompts)


async def watch(memory: palimpsest.Memory, seen: list[int]) -> None:
    """Watches every revision, until all chunks are in one."""
    async for change in memory.watch(after_revision=0):
        seen.append(change.revision.revision)
        read = change.revision.positions
        if read is not None and read.last == CHUNKS:
            return


def test_a_stream_learns_why_it_ends_and_what_was_committed_is_acked(servers: Servers) -> None:
    url = servers.new_database()

    async def stream(process: Process, address: str) -> tuple[int, str]:
        async with palimpsest.connect(address) as client:
            await client.create_session("s")
        async with grpc.aio.insecure_channel(address) as channel:
            call = session_service_pb2_grpc.SessionServiceStub(channel).AppendChunks()
            opening = session_service_pb2.AppendChunksRequest.Open(session="s", producer_id="p")
            await call.write(session_service_pb2.AppendChunksRequest(open=opening))
            await call.read()
            batch = session_service_pb2.AppendChunksRequest.Batch(
                chunks=[chunks_pb2.Chunk(producer_sequence=1, text="a")]
            )
            await call.write(session_service_pb2.AppendChunksRequest(batch=batch))
            acked = await call.read()
            assert isinstance(acked, session_service_pb2.AppendChunksResponse)
            process._popen.terminate()
            with pytest.raises(grpc.aio.AioRpcError) as ended:
                await call.read()
            assert ended.value.code() is grpc.StatusCode.UNAVAILABLE
            return acked.ack.through_position, str(ended.value.details())

    with api(url) as (process, address):
        position, said = asyncio.run(stream(process, address))
        assert process.wait(SLACK_SECONDS) == 0
    assert (position, said) == (1, "this server is stopping; another one serves: call again")
