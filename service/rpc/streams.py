"""Streams that wait for something to happen must not hold up a server that stops."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TypeVar

from service.domain.errors import Unavailable
from service.domain.reasons import Reason

T = TypeVar("T")


async def until_stopped(events: AsyncGenerator[T], stopping: asyncio.Event) -> AsyncGenerator[T]:
    """The events; raises Unavailable (SERVER_STOPPING) when the server stops first."""
    stopped = asyncio.create_task(stopping.wait())
    try:
        async with aclosing(events):
            while True:
                coming = asyncio.create_task(_next(events))
                try:
                    await asyncio.wait((coming, stopped), return_when=asyncio.FIRST_COMPLETED)
                    if not coming.done():
                        raise Unavailable(Reason.SERVER_STOPPING, "this server is stopping")
                finally:
                    # A generator that still runs cannot be closed.
                    coming.cancel()
                    await asyncio.wait((coming,))
                event = coming.result()
                if event is None:
                    return
                yield event
    finally:
        stopped.cancel()


async def _next(events: AsyncGenerator[T]) -> T | None:
    return await anext(events, None)
