"""Hints: telling workers about work, off the path of whoever caused it."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence

import structlog

from service.domain.fail_points import FailPoint, reach
from service.domain.work import WorkItem

_log = structlog.get_logger("palimpsest.hints")


class Hints:
    """Collects work items and passes them on in batches.

    Call `add` after the commit that made the work. A hint may be lost with the
    process; the reconciler finds the work all the same.
    """

    def __init__(self, hint: Callable[[Sequence[WorkItem]], Awaitable[None]]) -> None:
        self._hint = hint
        self._waiting: dict[WorkItem, None] = {}
        self._some = asyncio.Event()

    def add(self, items: Iterable[WorkItem]) -> None:
        """Passes `items` on soon; an item that waits already is passed on once."""
        for item in items:
            self._waiting[item] = None
        if self._waiting:
            self._some.set()

    async def run(self) -> None:
        """Passes hints on until it is cancelled."""
        while True:
            await self._some.wait()
            self._some.clear()
            try:
                await self.flush()
            except Exception:
                # The loop must outlive a defect: else no hint of this process would be
                # passed on any more, and all its work would wait for the reconciler.
                _log.exception("hints lost; the reconciler will find the work")

    async def flush(self) -> None:
        """Passes on what waits, at once."""
        batch, self._waiting = list(self._waiting), {}
        if batch:
            reach(FailPoint.HINTS_TAKEN)
            await self._hint(batch)
            reach(FailPoint.HINTS_PASSED)
