"""A watch over lost connections: every revision once, in order."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import pytest
from grpc import aio
from hypothesis import given, settings
from hypothesis import strategies as st

import palimpsest
from palimpsest import sync
from palimpsest.v1 import memories_pb2, memory_service_pb2
from tests.support.properties import examples
from tests.unit.client.server import add, serving

LOST = grpc.StatusCode.UNAVAILABLE
#: A port at which no process listens; one that was free a moment ago may be taken by now.
NOWHERE = 1
Request = memory_service_pb2.WatchMemoryRequest
Response = memory_service_pb2.WatchMemoryResponse


def started(after: int) -> Response:
    return Response(after_revision=after, resume_token=f"t{after}")


def committed(number: int) -> Response:
    revision = memories_pb2.Revision(revision=number, kind=memories_pb2.REVISION_KIND_STEP)
    return Response(revision=revision, after_revision=number, resume_token=f"t{number}")


class History:
    """A memory of `newest` revisions, whose streams end as `script` says.

    Each of its entries is for one stream: after how many messages it ends, and with which
    status. When none is left a stream continues.
    """

    def __init__(self, newest: int = 0) -> None:
        self.newest = newest
        self.script: list[tuple[int, grpc.StatusCode]] = []
        self.requests: list[Request] = []
        self.changed = asyncio.Event()
        self.cancelled = 0

    def commit(self, number: int = 1) -> None:
        self.newest += number
        self.changed.set()

    async def WatchMemory(self, request: Request, context: Any) -> AsyncIterator[Response]:
        self.requests.append(request)
        left, code = self.script.pop(0) if self.script else (10**9, LOST)
        told = self._begin(request)
        first = True
        try:
            while True:
                if left == 0:
                    await context.abort(code, "as the test says")
                left -= 1
                if not first:
                    while told >= self.newest:
                        self.changed.clear()
                        await self.changed.wait()
                    told += 1
                yield started(told) if first else committed(told)
                first = False
        except asyncio.CancelledError:
            self.cancelled += 1
            raise

    def _begin(self, request: Request) -> int:
        if request.HasField("resume_token"):
            return int(request.resume_token[1:])
        return request.after_revision if request.HasField("after_revision") else self.newest

    def register(self, server: aio.Server) -> None:
        add(server, "MemoryService", "told", self.WatchMemory, Request)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("palimpsest._async._history.STREAM_BACKOFF_SECONDS", (0.001, 0.01))


def memory(port: int) -> tuple[palimpsest.Client, palimpsest.Memory]:
    client = palimpsest.connect(f"127.0.0.1:{port}")
    return client, client.session("s").memory("m")


async def numbers(watch: palimpsest.Watch, count: int) -> list[int]:
    return [(await anext(watch)).revision.revision for _ in range(count)]


async def watched(history: History, use: Callable[[palimpsest.Memory], Any]) -> Any:
    async with serving(history.register) as port:
        client, watched_memory = memory(port)
        async with client:
            return await use(watched_memory)


@settings(max_examples=examples(30))
@given(
    cuts=st.lists(
        st.tuples(
            st.integers(0, 4),
            st.sampled_from([LOST, grpc.StatusCode.CANCELLED]),
        ),
        max_size=8,
    )
)
async def test_wherever_streams_end_each_revision_is_told_once(
    cuts: list[tuple[int, grpc.StatusCode]],
) -> None:
    history = History(newest=6)
    history.script = list(cuts)

    async def use(m: palimpsest.Memory) -> list[int]:
        async with m.watch(after_revision=0) as watch:
            return await numbers(watch, 6)

    assert await watched(history, use) == [1, 2, 3, 4, 5, 6]
    # A stream is reopened only after new revisions were received.
    assert history.requests[0].after_revision == 0
    assert len(history.requests) <= len(cuts) + 1


async def test_a_watch_goes_on_through_a_restart_of_the_server() -> None:
    history = History(newest=2)
    async with serving(history.register) as port:
        client, m = memory(port)
        watch = m.watch(after_revision=0)
        assert await numbers(watch, 2) == [1, 2]
    history.commit(2)
    async with serving(history.register, port):
        assert await numbers(watch, 2) == [3, 4]
        await watch.aclose()
        await client.close()
    assert [request.WhichOneof("start") for request in history.requests] == [
        "after_revision",
        "resume_token",
    ]
    assert history.requests[1].resume_token == "t2"


async def test_entering_a_watch_begins_it_so_that_what_follows_is_sent() -> None:
    history = History(newest=7)

    async def use(m: palimpsest.Memory) -> list[int]:
        async with m.watch() as watch:
            assert watch.resume_token == "t7"
            history.commit()
            event = await anext(watch)
            assert event.resume_token == watch.resume_token == "t8"
            return [event.revision.revision]

    assert await watched(history, use) == [8]


async def test_a_resume_token_goes_on_in_another_watch() -> None:
    history = History(newest=5)

    async def use(m: palimpsest.Memory) -> list[int]:
        async with m.watch(resume_token="t3") as watch:
            return await numbers(watch, 2)

    assert await watched(history, use) == [4, 5]


async def test_a_wait_that_is_cancelled_misses_nothing() -> None:
    history = History()

    async def use(m: palimpsest.Memory) -> list[int]:
        async with m.watch(after_revision=0) as watch:
            for _ in range(3):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(anext(watch), 0.02)
            history.commit(3)
            return await numbers(watch, 3)

    assert await watched(history, use) == [1, 2, 3]


async def test_closing_ends_a_wait_and_the_stream() -> None:
    history = History()

    async def use(m: palimpsest.Memory) -> list[palimpsest.Committed]:
        watch = m.watch()
        await watch.__aenter__()
        waiting = asyncio.create_task(_all(watch))
        await asyncio.sleep(0.01)
        await watch.aclose()
        told = await waiting
        # The server hears of it later, and would end the stream itself when it stops.
        async with asyncio.timeout(60):
            while not history.cancelled:
                await asyncio.sleep(0.01)
        return told

    assert await watched(history, use) == []
    assert history.cancelled == 1


async def _all(watch: palimpsest.Watch) -> list[palimpsest.Committed]:
    return [event async for event in watch]


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (grpc.StatusCode.NOT_FOUND, palimpsest.NotFound),
        (grpc.StatusCode.OUT_OF_RANGE, palimpsest.OutOfRange),
        (grpc.StatusCode.INVALID_ARGUMENT, palimpsest.InvalidArgument),
    ],
)
async def test_what_would_be_refused_again_is_raised_at_once(
    code: grpc.StatusCode, kind: type[Exception]
) -> None:
    history = History()
    history.script = [(0, code)]

    async def use(m: palimpsest.Memory) -> None:
        with pytest.raises(kind, match="as the test says"):
            await anext(m.watch())

    await watched(history, use)
    assert len(history.requests) == 1


async def test_a_service_that_stays_away_is_given_up() -> None:
    client, m = memory(NOWHERE)
    async with client:
        with pytest.raises(palimpsest.ConnectionFailed, match="cannot reach"):
            await anext(m.watch(give_up_seconds=0.2))


async def test_two_starts_are_refused() -> None:
    client, m = memory(NOWHERE)
    async with client:
        with pytest.raises(ValueError, match="not both"):
            m.watch(after_revision=1, resume_token="x")


async def test_the_synchronous_watch_is_an_iterator_that_can_be_closed() -> None:
    history = History(newest=3)

    def use(port: int) -> tuple[list[int], list[int]]:
        with sync.Client(f"127.0.0.1:{port}") as client:
            with client.session("s").memory("m").watch(after_revision=1) as watch:
                some = [next(watch).revision.revision for _ in range(2)]
                token = watch.resume_token
            assert token == "t3"
            return some, [event.revision.revision for event in watch]

    async with serving(history.register) as port:
        assert await asyncio.to_thread(use, port) == ([2, 3], [])


async def test_a_watch_that_is_closed_while_it_begins_stays_closed() -> None:
    client, m = memory(NOWHERE)
    async with client:
        watch = m.watch()
        entering = asyncio.create_task(watch.__aenter__())
        await asyncio.sleep(0.02)
        await watch.aclose()
        assert await asyncio.wait_for(entering, 30) is watch
        assert [event async for event in watch] == []


async def test_another_thread_can_end_the_wait_of_a_synchronous_watch() -> None:
    history = History()

    def use(port: int) -> list[palimpsest.Committed]:
        with sync.Client(f"127.0.0.1:{port}") as client:
            watch = client.session("s").memory("m").watch()
            watch.__enter__()
            closing = threading.Timer(0.05, watch.close)
            closing.start()
            told = list(watch)
            closing.join()
            return told

    async with serving(history.register) as port:
        assert await asyncio.to_thread(use, port) == []
