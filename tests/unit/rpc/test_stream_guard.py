"""Streams that wait for a message make room when memory grows."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from service.rpc import stream_guard
from service.rpc.stream_guard import StreamGuard

LONG_SECONDS = 600.0
MAX_BYTES = 1000


class Waiting:
    """Streams that wait under a guard, and the memory of the process."""

    def __init__(self, overdrawn_seconds: float) -> None:
        #: What is not of streams.
        self.other = 5000
        #: What streams hold that wait for the rest of a message.
        self.held = 0
        self.tasks: list[asyncio.Task[None]] = []
        self.guard = StreamGuard(
            max_bytes=MAX_BYTES,
            allocated=self.heap,
            resident=self.heap,
            overdrawn_seconds=overdrawn_seconds,
        )

    def heap(self) -> int:
        """Returns all of it."""
        return self.other + self.held

    def stream(self, connection: str, held: int = 0) -> asyncio.Task[None]:
        """Lets a stream wait that holds so many bytes."""
        self.tasks.append(asyncio.create_task(self._wait(connection, held)))
        return self.tasks[-1]

    async def _wait(self, connection: str, held: int) -> None:
        async with self.guard.waiting(connection, LONG_SECONDS):
            self.held += held
            try:
                await asyncio.Event().wait()
            finally:
                self.held -= held


@asynccontextmanager
async def guarded(
    monkeypatch: pytest.MonkeyPatch, overdrawn_seconds: float = LONG_SECONDS
) -> AsyncIterator[Waiting]:
    monkeypatch.setattr(stream_guard, "LOOK_SECONDS", 0.001)
    waiting = Waiting(overdrawn_seconds)
    yield waiting
    for task in waiting.tasks:
        task.cancel()
    await asyncio.gather(*waiting.tasks, return_exceptions=True)
    assert not waiting.guard._waiting


async def looks(waiting: Waiting) -> None:
    """Lets the guard look several times."""
    guard = waiting.guard
    for _ in range(20):
        before = guard._timer
        async with asyncio.timeout(60):
            while guard._timer is before:
                await asyncio.sleep(0)


async def test_streams_of_the_heaviest_connection_go_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with guarded(monkeypatch) as waiting:
        honest = [waiting.stream(f"honest {number}", held=10) for number in range(5)]
        await looks(waiting)
        attacking = [waiting.stream("attacker", held=300) for _ in range(10)]
        ended = await asyncio.gather(*attacking, return_exceptions=True)
        assert all(isinstance(one, TimeoutError) for one in ended)
        await looks(waiting)
        assert not any(one.done() for one in honest)
        assert waiting.guard.is_overdrawn("attacker")
        assert not waiting.guard.is_overdrawn("honest 1")


async def test_memory_below_the_bound_closes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async with guarded(monkeypatch) as waiting:
        streams = [waiting.stream("a", held=MAX_BYTES // 10) for _ in range(10)]
        await looks(waiting)
        assert not any(one.done() for one in streams)


async def test_memory_that_is_not_of_streams_closes_them_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with guarded(monkeypatch) as waiting:
        first = [waiting.stream(f"connection {number}") for number in range(9)]
        await looks(waiting)
        waiting.other += 2 * MAX_BYTES
        ended = await asyncio.gather(*first, return_exceptions=True)
        assert all(isinstance(one, TimeoutError) for one in ended)
        # They are opened again, and the memory is still there.
        again = [waiting.stream(f"connection {number}") for number in range(9)]
        await looks(waiting)
        assert not any(one.done() for one in again)
        assert len(waiting.guard._waiting) == 9
        assert not any(waiting.guard.is_overdrawn(f"connection {number}") for number in range(9))


async def test_no_message_is_read_until_the_memory_of_closed_streams_is_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with guarded(monkeypatch) as waiting:
        attacking = [
            waiting.stream(f"attacker {number}", held=2 * MAX_BYTES) for number in range(8)
        ]
        await asyncio.gather(*attacking, return_exceptions=True)
        # An attacker that returns at once does not pass for what was there before.
        for _ in range(5):
            again = [
                waiting.stream(f"attacker {number}", held=2 * MAX_BYTES) for number in range(8)
            ]
            await asyncio.gather(*again, return_exceptions=True)
        assert waiting.guard._least < waiting.other + MAX_BYTES


async def test_a_connection_is_overdrawn_for_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async with guarded(monkeypatch, overdrawn_seconds=0.01) as waiting:
        attacking = waiting.stream("attacker", held=2 * MAX_BYTES)
        await asyncio.gather(attacking, return_exceptions=True)
        async with asyncio.timeout(60):
            while waiting.guard.is_overdrawn("attacker"):
                await asyncio.sleep(0.001)
        assert not waiting.guard._overdrawn


async def test_a_stream_that_is_idle_for_long_is_closed_too() -> None:
    guard = StreamGuard(max_bytes=MAX_BYTES)
    with pytest.raises(TimeoutError):
        async with guard.waiting("a", 0.01):
            await asyncio.Event().wait()
    assert not guard._waiting
