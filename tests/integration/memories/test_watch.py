"""Watching over gRPC, with servers that stop, die and come back."""

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from typing import Any
from uuid import uuid4

import pytest

import palimpsest
from palimpsest import Edit
from palimpsest.v1 import memory_service_pb2, memory_service_pb2_grpc
from service.local.processes import free_port
from tests.support.harness import Servers, api

SCHEMA = "class A:\n    count: int\n    topics: dict[str, list[str]]\n"


@pytest.fixture
async def memory(client: palimpsest.Client) -> palimpsest.Memory:
    session = await client.create_session(f"watch-{uuid4().hex}")
    return await session.create_memory("m", SCHEMA)


async def count(memory: palimpsest.Memory, *numbers: int) -> None:
    for number in numbers:
        await memory.edit([Edit.put("$.count", number)])


async def told(watch: palimpsest.Watch, number: int) -> list[tuple[int, Any]]:
    """Returns the next so many revisions, each with the value that it put there."""
    events = [await anext(watch) for _ in range(number)]
    return [(event.revision.revision, event.amendments[0].value) for event in events]


async def test_a_watch_sends_past_and_new_revisions(memory: palimpsest.Memory) -> None:
    await count(memory, 1, 2)
    async with memory.watch(after_revision=0) as watch, memory.watch() as newer:
        assert await told(watch, 2) == [(1, 1), (2, 2)]
        await memory.fold()
        await memory.rollback(1)
        events = [await anext(watch) for _ in range(2)]
        assert [event.revision.kind for event in events] == ["fold", "rollback"]
        assert [event.amendments for event in events] == [(), ()]
        assert events[1].revision == [one async for one in memory.revisions()][4]
        await count(memory, 9)
        assert await told(watch, 1) == [(5, 9)]
        assert [(await anext(newer)).revision.revision for _ in range(3)] == [3, 4, 5]
    async with memory.watch(resume_token=events[0].resume_token) as behind:
        assert (await anext(behind)).revision.revision == 4


async def test_a_watch_of_what_is_deleted_ends_with_its_names(memory: palimpsest.Memory) -> None:
    async with memory.watch(after_revision=0) as watch:
        await count(memory, 1)
        await told(watch, 1)
        await memory.delete()
        with pytest.raises(palimpsest.NotFound) as gone:
            await anext(watch)
    assert gone.value.reason == "MEMORY_NOT_FOUND"
    assert gone.value.metadata == {"session": memory.session.id, "memory": "m"}


@pytest.mark.prove
async def test_many_revisions_are_sent_in_order(memory: palimpsest.Memory) -> None:
    async def edit() -> None:
        for number in range(130):
            await memory.edit(
                [Edit.put("$.count", number), Edit.put("$.topics.'t'", [str(number)])]
            )

    editing = asyncio.create_task(edit())
    async with memory.watch(after_revision=0) as watch:
        events = [await anext(watch) for _ in range(130)]
    await editing
    assert [event.revision.revision for event in events] == list(range(1, 131))
    assert [event.amendments[0].value for event in events] == list(range(130))
    assert {len(event.amendments) for event in events} == {2}


async def test_a_large_revision_is_sent_in_part(memory: palimpsest.Memory) -> None:
    value = ["x" * 60_000]
    await memory.edit([Edit.put(f"$.topics.'t{n}'", value) for n in range(16)])
    await memory.edit([Edit.remove(f"$.topics.'t{n}'") for n in range(16)])
    edits = [edit for n in range(40) for edit in _there_and_back(n, value)]
    await memory.edit(edits)
    async with memory.watch(after_revision=0) as watch:
        whole, gone, large = [await anext(watch) for _ in range(3)]
    assert (len(whole.amendments), whole.amendments_truncated) == (16, False)
    assert (len(gone.amendments), gone.amendments_truncated) == (16, False)
    assert large.amendments_truncated
    assert 30 < len(large.amendments) < large.revision.amendment_count == 80
    listed = [one async for one in memory.amendments() if one.revision == 3]
    assert len(listed) == 80
    assert tuple(listed[: len(large.amendments)]) == large.amendments


def _there_and_back(number: int, value: list[str]) -> list[Edit]:
    return [Edit.put(f"$.topics.'u{number}'", value), Edit.remove(f"$.topics.'u{number}'")]


async def test_a_watch_cannot_begin_after_the_newest(memory: palimpsest.Memory) -> None:
    with pytest.raises(palimpsest.OutOfRange) as caught:
        await anext(memory.watch(after_revision=1))
    assert caught.value.reason == "REVISION_NOT_FOUND"
    assert caught.value.metadata == {"revision": "1", "newest": "0"}


async def test_a_token_is_only_good_for_its_memory(memory: palimpsest.Memory) -> None:
    other = await memory.session.create_memory("other", SCHEMA)
    async with other.watch() as watch:
        foreign = watch.resume_token
    for token in ("nonsense", foreign):
        with pytest.raises(palimpsest.InvalidArgument) as caught:
            await anext(memory.watch(resume_token=token))
        assert caught.value.reason == "TOKEN_INVALID"
        assert list(caught.value.fields) == ["resume_token"]


async def test_the_clients_deadline_ends_a_watch(memory: palimpsest.Memory) -> None:
    stub = memory_service_pb2_grpc.MemoryServiceStub(memory._connection.channel)
    request = memory_service_pb2.WatchMemoryRequest(session=memory.session.id, memory="m")

    async def read(_: Any, timeout: float) -> None:
        async for response in stub.WatchMemory(request, timeout=timeout):
            assert not response.HasField("revision")
            assert (response.after_revision, bool(response.resume_token)) == (0, True)

    with pytest.raises(palimpsest.DeadlineExceeded) as caught:
        await memory._connection.call(read, request, timeout=4.5, retry=False)
    assert caught.value.reason == "NOT_APPLIED_IN_TIME"


class Restarted:
    """An API on one port, that can go away and come back."""

    def __init__(self, url: str, **environment: str) -> None:
        self._url = url
        self._environment = environment
        self.address = f"127.0.0.1:{free_port()}"
        self._open()

    def _open(self) -> None:
        settings = {"PALIMPSEST_LISTEN": self.address, **self._environment}
        self._manager = api(self._url, **settings)
        self.process, self.address = self._manager.__enter__()

    def restart(self, how: signal.Signals) -> None:
        if how is signal.SIGKILL:
            self.process.kill()
        else:
            assert self.process.stop() == 0
        self._open()

    def close(self) -> None:
        self._manager.__exit__(None, None, None)


@pytest.fixture(scope="module")
def own(servers: Servers) -> Iterator[Restarted]:
    restarted = Restarted(servers.new_database(), PALIMPSEST_LIMIT_MAX_WATCHES="2")
    yield restarted
    restarted.close()


@pytest.fixture
async def near(own: Restarted) -> AsyncIterator[palimpsest.Memory]:
    """Yields a memory of the service that can be restarted."""
    async with palimpsest.connect(own.address) as client:
        session = await client.create_session(f"near-{uuid4().hex}")
        yield await session.create_memory("m", SCHEMA)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
async def test_no_revision_is_missed_or_repeated_when_the_server_restarts(
    own: Restarted, near: palimpsest.Memory, how: signal.Signals
) -> None:
    await count(near, 1, 2)
    async with near.watch(after_revision=0) as watch:
        assert await told(watch, 1) == [(1, 1)]
        waiting = asyncio.create_task(told(watch, 4))
        await asyncio.to_thread(own.restart, how)
        # Another connection, since an edit is not sent again by itself.
        async with palimpsest.connect(own.address, reach_seconds=60) as client:
            again = client.session(near.session.id).memory("m")
            await again.get()
            await count(again, 3, 4, 5)
        assert await waiting == [(2, 2), (3, 3), (4, 4), (5, 5)]


async def test_a_rebuild_is_followed_when_the_server_restarts(
    own: Restarted, near: palimpsest.Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a worker it never ends; it must not fail either."""
    call = near._connection.call

    async def patient(method: Any, request: Any, **how: Any) -> Any:
        # A server may take longer to come back than calls continue by default.
        return await call(method, request, **how | {"timeout": 300.0})

    monkeypatch.setattr(near._connection, "call", patient)
    async with near.session.producer("p") as producer:
        await producer.append("text")
    heard = asyncio.Event()
    rebuild = await near.rebuild("n")
    rebuilding = asyncio.create_task(rebuild.wait(on_progress=lambda _: heard.set()))
    await heard.wait()
    heard.clear()
    await asyncio.to_thread(own.restart, signal.SIGTERM)
    hearing = asyncio.create_task(heard.wait())
    await asyncio.wait((hearing, rebuilding), return_when=asyncio.FIRST_COMPLETED)
    hearing.cancel()
    assert not rebuilding.done()
    rebuilding.cancel()
    with pytest.raises(asyncio.CancelledError):
        await rebuilding
    assert (await near.session.memory("n").get()).info.rebuilt_from == "m"


async def test_a_full_server_refuses_watches_until_one_ends(near: palimpsest.Memory) -> None:
    first, second = near.watch(), near.watch()
    await first.__aenter__()
    await second.__aenter__()
    with pytest.raises(palimpsest.ResourceExhausted) as caught:
        await near.watch(give_up_seconds=0.1).__aenter__()
    assert caught.value.reason == "TOO_MANY_WATCHES"
    assert caught.value.metadata == {"limit": "2"}
    entering = asyncio.create_task(near.watch().__aenter__())
    await first.aclose()
    third = await entering
    await count(near, 1)
    assert await told(second, 1) == await told(third, 1) == [(1, 1)]
    await second.aclose()
    await third.aclose()
