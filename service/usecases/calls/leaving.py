"""Cancels in-flight work, including model calls, when its only client disconnects."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def for_one_client(work: Coroutine[Any, Any, T], call_off: Callable[[], None]) -> T:
    """Returns the result of `work`. Cancelled, it calls off what the work has under way.

    A model call usually goes on when its caller is cancelled, since the client may ask again.
    Where each request has an occasion of its own, no later request could use the reply.
    """
    task = asyncio.create_task(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        # First: a task that has ended has nothing under way.
        call_off()
        task.cancel()
        await asyncio.wait((task,))
        raise
