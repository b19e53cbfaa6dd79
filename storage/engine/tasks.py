"""Ending tasks for certain.

A pool that hands a task its connection in the moment in which the task is cancelled returns the
connection, and the cancellation is lost (psycopg_pool's `WaitingClient.wait`). A loop goes on then,
and who waits for its end would wait for ever.
"""

import asyncio
from collections.abc import Collection
from typing import Any

#: When a task that goes on is cancelled again, in seconds.
AGAIN_SECONDS = 1.0


async def cancel(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Cancels tasks until all have ended, whatever they end with."""
    going_on = {task for task in tasks if not task.done()}
    while going_on:
        for task in going_on:
            task.cancel()
        _, going_on = await asyncio.wait(going_on, timeout=AGAIN_SECONDS)
    await asyncio.gather(*tasks, return_exceptions=True)
