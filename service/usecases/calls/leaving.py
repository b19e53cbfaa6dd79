"""Cancels in-flight work, including model calls, when its only client disconnects."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def for_one_client(work: Coroutine[Any, Any, T], call_off: Callable[[], None]) -> T:
    """The result of `work`. Cancelled, it calls off what the work has under way.

    A model call goes on when whoever waits for it is only cancelled: somebody may ask again.
    That is not so where each request has an occasion of its own.
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
