"""The port: what the service needs of whatever gives its workers their work."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from service.domain.values.work_items import WorkItem

#: Works on an item. Returns the seconds after which somebody should come back to it, 0 for at
#: once, behind others; None when there is no more to do. Raises NotNow.
Handler = Callable[[WorkItem], Awaitable[float | None]]


class NotNow(Exception):
    """An item cannot be worked on for so many seconds: nobody takes it meanwhile."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"not for {seconds} s")
        self.seconds = seconds


@dataclass(frozen=True, kw_only=True, slots=True)
class DispatchStatistics:
    """What waits and what runs."""

    #: Items that could be worked on, and that no worker has in hand.
    queued: int
    #: Items that workers have in hand.
    running: int
    #: How long the oldest has been ready, in seconds; 0 when none is.
    oldest_queued_seconds: float


class Dispatcher(Protocol):
    """Gives work to workers. That nobody else has an item in hand may turn out wrong without
    harm: the epoch fences who took it twice.
    """

    async def wake_up(self, items: Sequence[WorkItem]) -> None:
        """Says that there is work. Call it after the commit that made the work.

        May lose wake-ups, and then logs it; never raises for want of a database. What nobody
        was told of is found all the same, a little later.
        """
        ...

    async def want(self, memories: Sequence[WorkItem]) -> None:
        """Says that somebody waits for memories, which then go first. May be lost, as a wake-up."""
        ...

    async def run(
        self, handler: Handler, *, concurrency: int, stop: asyncio.Event, stop_seconds: float
    ) -> None:
        """Calls `handler` for items with work, at most `concurrency` at once, one worker
        an item. When `stop` is set, lets handlers end within `stop_seconds`, and
        cancels the ones that did not. Goes on when the database comes back.
        """
        ...

    async def offer(self, items: Sequence[WorkItem]) -> None:
        """Takes items that no look at the queue shows, as soon as it has time for them."""
        ...

    async def sweep(self) -> int:
        """Frees items that dead workers held; how many.

        For any worker, about every second.
        """
        ...

    async def statistics(self) -> DispatchStatistics:
        """What waits and what runs. Raises ConnectionError."""
        ...
