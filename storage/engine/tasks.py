"""Cancels tasks until they end.

A task that is cancelled in the moment in which a pool gives it a connection loses the cancellation
(psycopg_pool's `WaitingClient.wait`). Its loop would go on, and waiting for its end would never
end.
"""

import asyncio
from collections.abc import Collection
from typing import Any

#: After how long a task that still runs is cancelled again, in seconds.
AGAIN_SECONDS = 1.0


async def cancel(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Cancels tasks until all have ended, whatever they end with."""
    going_on = {task for task in tasks if not task.done()}
    while going_on:
        for task in going_on:
            task.cancel()
        _, going_on = await asyncio.wait(going_on, timeout=AGAIN_SECONDS)
    await asyncio.gather(*tasks, return_exceptions=True)
