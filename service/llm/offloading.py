"""Work that takes the processor for long runs beside the event loop, in a thread.

On that loop a worker renews its leases and reports that it lives, and a server answers clients.
What may take more than a few dozen milliseconds does not belong there.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


async def beside(work: Callable[P, R], *args: P.args, **named: P.kwargs) -> R:
    """Runs `work` in a thread and returns what it makes.

    Cancelled, it ends only when the thread is done: the caller may take apart then what the
    work was at.
    """
    running = asyncio.create_task(asyncio.to_thread(work, *args, **named))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        while not running.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([running])
        # The error has no reader, and asyncio would warn that it was never retrieved.
        running.exception()
        raise
