"""Ends streams that wait for events when the server stops."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import TypeVar

from service.domain.values.errors import server_stopping

T = TypeVar("T")


async def until_stopped(events: AsyncGenerator[T], stopping: asyncio.Event) -> AsyncGenerator[T]:
    """Yields the events. Raises Unavailable (SERVER_STOPPING) when the server stops first."""
    stopped = asyncio.create_task(stopping.wait())
    try:
        async with aclosing(events):
            while True:
                coming = asyncio.create_task(_next(events))
                try:
                    await asyncio.wait((coming, stopped), return_when=asyncio.FIRST_COMPLETED)
                    if not coming.done():
                        raise server_stopping()
                finally:
                    # A generator that still runs cannot be closed.
                    coming.cancel()
                    await _ended(coming)
                event = coming.result()
                if event is None:
                    return
                yield event
    finally:
        stopped.cancel()


async def until_stopped_behind(
    events: AsyncGenerator[T], stopping: asyncio.Event, is_begun: Callable[[T], bool]
) -> AsyncGenerator[T]:
    """Yields all events up to the first that `is_begun`, then those of `until_stopped`.

    Before that event the client could not ask for the rest again.
    """
    async with aclosing(events):
        async for event in events:
            yield event
            if is_begun(event):
                break
        async with aclosing(until_stopped(events, stopping)) as rest:
            async for event in rest:
                yield event


async def _ended(task: asyncio.Task[T]) -> None:
    """Waits for the end of a task, also when the waiting task is cancelled meanwhile."""
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled


async def _next(events: AsyncGenerator[T]) -> T | None:
    return await anext(events, None)
