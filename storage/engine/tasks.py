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


class Preemption(asyncio.Event):
    """Ends the turn of some work, which is continued later.

    A request waits until the work has begun a part, so that each turn makes progress.
    """

    def __init__(self) -> None:
        super().__init__()
        self._is_requested = False
        self._has_begun = False

    def request(self) -> None:
        """Ends the turn after the part that was begun, or the first one."""
        self._is_requested = True
        if self._has_begun:
            self.set()

    def begin(self) -> None:
        """Notes that a part was begun."""
        self._has_begun = True
        if self._is_requested:
            self.set()


def begin_part(stop: asyncio.Event | None) -> None:
    """Notes in what ends a turn that a part was begun."""
    if isinstance(stop, Preemption):
        stop.begin()
