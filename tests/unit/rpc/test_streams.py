"""Streams that end: by their events, by a server that stops, by a client that goes away."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest

from service.domain.values.errors import Unavailable
from service.rpc.streams import until_stopped


class Events:
    """One event, and then a wait without end."""

    def __init__(self) -> None:
        self.waits = asyncio.Event()
        self.closed = False

    async def run(self) -> AsyncGenerator[int]:
        try:
            yield 1
            self.waits.set()
            await asyncio.Event().wait()
        finally:
            # What is cleaned up may have to wait as well.
            await asyncio.sleep(0)
            self.closed = True


async def listen(events: AsyncGenerator[int], stopping: asyncio.Event) -> list[int]:
    async with aclosing(until_stopped(events, stopping)) as told:
        return [event async for event in told]


async def test_a_client_that_goes_away_closes_the_events() -> None:
    events = Events()
    call = asyncio.create_task(listen(events.run(), asyncio.Event()))
    await events.waits.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert events.closed


async def test_a_server_that_stops_closes_the_events() -> None:
    events, stopping = Events(), asyncio.Event()
    call = asyncio.create_task(listen(events.run(), stopping))
    await events.waits.wait()
    stopping.set()
    with pytest.raises(Unavailable):
        await call
    assert events.closed


async def test_events_that_end_end_the_stream() -> None:
    async def three() -> AsyncGenerator[int]:
        for number in range(3):
            yield number

    assert await listen(three(), asyncio.Event()) == [0, 1, 2]


async def test_one_that_is_cancelled_as_the_server_stops_closes_the_events_first() -> None:
    stopping, may_end, closed = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def slow() -> AsyncGenerator[int]:
        try:
            await asyncio.Event().wait()
            yield 1
        finally:
            # As a connection does that is given back.
            await may_end.wait()
            closed.set()

    async def follow() -> None:
        async with aclosing(until_stopped(slow(), stopping)) as told:
            async for _ in told:
                pass

    following = asyncio.create_task(follow())
    for step in (stopping.set, following.cancel, may_end.set):
        for _ in range(5):
            await asyncio.sleep(0)
        step()
    with pytest.raises(asyncio.CancelledError):
        await following
    assert closed.is_set()
