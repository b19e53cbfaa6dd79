"""Runs long computations in a thread.

The event loop renews leases, sends heartbeats and answers clients: nothing there may take more than
a few dozen milliseconds.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


async def beside(work: Callable[P, R], *args: P.args, **named: P.kwargs) -> R:
    """Runs `work` in a thread and returns its result.

    If cancelled, waits for the thread: the caller may then discard what the work has used.
    """
    running = asyncio.create_task(asyncio.to_thread(work, *args, **named))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        while not running.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([running])
        # Retrieved, or asyncio would warn about an error without a reader.
        running.exception()
        raise
