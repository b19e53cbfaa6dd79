"""Work in a thread over pages that the event loop reads."""

import asyncio
import threading
import tracemalloc
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import pytest

from service.domain.answers.browse.packing import frames
from service.domain.prompting.tokens import estimate_tokens
from service.llm.splitter import first_piece
from service.usecases.tree.feeding import in_thread


async def pages(*held: Sequence[int]) -> AsyncIterator[Sequence[int]]:
    for page in held:
        await asyncio.sleep(0)
        yield page


async def test_the_work_gets_all_of_it_in_order() -> None:
    def work(items: Iterator[int]) -> tuple[list[int], int]:
        return list(items), threading.get_ident()

    found, thread = await in_thread(pages([1, 2], [], [3]), work)
    assert found == [1, 2, 3]
    assert thread != threading.get_ident()
    assert (await in_thread(pages(), work))[0] == []


async def test_a_page_is_read_when_the_ones_before_it_are_worked_off() -> None:
    told: list[str] = []

    async def telling() -> AsyncIterator[Sequence[int]]:
        for number in (1, 2):
            told.append(f"read {number}")
            yield [number]

    def work(items: Iterator[int]) -> None:
        for one in items:
            told.append(f"worked {one}")

    await in_thread(telling(), work)
    assert told == ["read 1", "worked 1", "read 2", "worked 2"]


async def test_errors_of_both_sides_come_out_as_they_are() -> None:
    async def broken() -> AsyncIterator[Sequence[int]]:
        yield [1]
        raise OSError("gone")

    with pytest.raises(OSError, match=r"^gone$"):
        await in_thread(broken(), list)

    def fails(items: Iterator[int]) -> None:
        raise LookupError(next(items))

    with pytest.raises(LookupError, match=r"^1$"):
        await in_thread(pages([1]), fails)


async def test_cancelled_it_ends_though_it_waits_for_a_page() -> None:
    waiting, ended = asyncio.Event(), threading.Event()

    async def stuck() -> AsyncIterator[Sequence[int]]:
        yield [1]
        waiting.set()
        await asyncio.Event().wait()

    def work(items: Iterator[int]) -> list[int]:
        try:
            return list(items)
        finally:
            ended.set()

    running = asyncio.create_task(in_thread(stuck(), work))
    await asyncio.wait_for(waiting.wait(), 30)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert await asyncio.to_thread(ended.wait, 30), "no thread is left behind"


async def test_cancelled_as_it_begins_to_wait_for_a_page_it_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked, stopped, ended = asyncio.Event(), threading.Event(), threading.Event()
    ask = asyncio.run_coroutine_threadsafe

    def slow(*arguments: Any) -> Any:
        # The page is asked for, and the thread is not told so before somebody stops it.
        awaited = ask(*arguments)
        assert stopped.wait(30), "it is cancelled meanwhile"
        return awaited

    async def stuck() -> AsyncIterator[Sequence[int]]:
        asked.set()
        await asyncio.Event().wait()
        yield [1]

    def work(items: Iterator[int]) -> list[int]:
        try:
            return list(items)
        finally:
            ended.set()

    monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", slow)
    running = asyncio.create_task(in_thread(stuck(), work))
    await asyncio.wait_for(asked.wait(), 30)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    stopped.set()
    assert await asyncio.to_thread(ended.wait, 30), "no thread is left behind"


async def test_a_long_log_is_packed_without_holding_it() -> None:
    text = "some words of it here, ten in all, " * 12

    async def log() -> AsyncIterator[Sequence[tuple[int, str]]]:
        for after in range(0, 20_000, 500):
            yield [(at, f"chunk {at} {text}") for at in range(after + 1, after + 501)]

    tracemalloc.start()
    try:
        found = await in_thread(
            log(),
            lambda texts: tuple(frames(texts, 2500, count=estimate_tokens, cut=first_piece)),
        )
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (found[0].from_position, found[-1].to_position) == (1, 20_000)
    # The log has 8.6 MB.
    assert most < 2_000_000
