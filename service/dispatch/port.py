"""The port: what the service needs of whatever wakes its workers."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from service.domain.work import WorkItem

Handler = Callable[[WorkItem], Awaitable[None]]


@dataclass(frozen=True, kw_only=True, slots=True)
class DispatchStatistics:
    """What waits and what runs."""

    #: Hints that no worker has taken.
    queued: int
    #: Items that workers have in hand.
    running: int
    #: Age of the oldest hint that waits, in seconds; 0 when none does.
    oldest_queued_seconds: float


class Dispatcher(Protocol):
    """Wakes workers. Every promise it makes may break without losing work: the
    reconciler finds what nobody was woken for, the epoch fences who was woken twice.
    """

    async def __aenter__(self) -> "Dispatcher":
        """Connects."""
        ...

    async def __aexit__(self, *error: object) -> None:
        """Disconnects."""
        ...

    async def hint(self, items: Sequence[WorkItem]) -> None:
        """Says that there is work. Call it after the commit that made the work.

        A hint for an item that one waits for already adds nothing. May lose hints, and
        then logs it; never raises for want of a database.
        """
        ...

    async def run(
        self, handler: Handler, *, concurrency: int, stop: asyncio.Event, stop_seconds: float
    ) -> None:
        """Calls `handler` for hinted items, at most `concurrency` at once, one worker
        an item. When `stop` is set, lets handlers end within `stop_seconds`, and
        cancels the ones that did not. Goes on when the database comes back.
        """
        ...

    async def sweep(self) -> int:
        """Frees items that dead workers held, and hints at them again; how many.

        For any worker, about every second.
        """
        ...

    async def statistics(self) -> DispatchStatistics:
        """What waits and what runs."""
        ...
