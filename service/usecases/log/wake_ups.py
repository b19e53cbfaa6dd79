"""Wakes workers when there is work, outside of the call that caused it."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import islice
from uuid import UUID

import structlog

from service.domain.values.work_items import WorkItem, WorkKind

_log = structlog.get_logger("palimpsest.wake_ups")

#: Passes items on.
Passes = Callable[[Sequence[WorkItem]], Awaitable[None]]

#: Items that wait, at most; workers find any others by themselves.
MAX_WAITING = 10_000
#: Items that are passed on together.
BATCH_ITEMS = 1000
#: Between two batches, in seconds: what arrives meanwhile shares the next.
PAUSE_SECONDS = 0.01
#: How long passing some on may take.
WAKE_UP_SECONDS = 10.0


class WakeUps:
    """Collects work items and passes them on in batches.

    Call `add` after the commit that made the work. A wake-up may be lost with the process, or
    where too many wait; workers find the work all the same.
    """

    def __init__(self, wake_up: Passes, want: Passes | None = None) -> None:
        """`want` receives memories that a client waits for, which then have priority."""
        self._wake_up = wake_up
        self._want = want
        #: What is to be passed on, and whether a client waits for it.
        self._waiting: dict[WorkItem, bool] = {}
        self._some = asyncio.Event()
        #: Since the last warning in the log.
        self._lost = 0

    def add(self, items: Iterable[WorkItem], *, wanted: bool = False) -> None:
        """Passes `items` on soon; an item that waits already is passed on once.

        `wanted`: a client waits for them.
        """
        for item in items:
            if len(self._waiting) < MAX_WAITING or item in self._waiting:
                self._waiting[item] = wanted or self._waiting.get(item, False)
            else:
                self._lost += 1
        if self._waiting:
            self._some.set()

    def add_memories(
        self, tenant_id: UUID, keys: Iterable[tuple[UUID, UUID]], *, wanted: bool = False
    ) -> None:
        """Does as `add`, for memories by their session_key and memory_id."""
        items = (
            WorkItem(kind=WorkKind.MEMORY, tenant_id=tenant_id, session_key=key, item_id=memory_id)
            for key, memory_id in keys
        )
        self.add(items, wanted=wanted)

    async def run(self) -> None:
        """Passes wake-ups on until it is cancelled."""
        while True:
            await self._some.wait()
            await self._pass_some_on()
            if self._lost:
                _log.warning(
                    "too many wake-ups wait; workers find the work by themselves", lost=self._lost
                )
                self._lost = 0
            await asyncio.sleep(PAUSE_SECONDS)

    async def flush(self) -> None:
        """Passes on what waits, at once."""
        while self._waiting:
            await self._pass_some_on()

    async def _pass_some_on(self) -> None:
        batch = list(islice(self._waiting, BATCH_ITEMS))
        wanted = [item for item in batch if self._waiting.pop(item)]
        if not self._waiting:
            self._some.clear()
        if not batch:
            return
        try:
            async with asyncio.timeout(WAKE_UP_SECONDS):
                if wanted and self._want is not None:
                    await self._want([one for one in wanted if one.kind is WorkKind.MEMORY])
                await self._wake_up(batch)
        except TimeoutError:
            _log.warning(
                "wake-ups lost; workers find the work by themselves", cause="no reply in time"
            )
        except Exception:
            # Without the loop that calls this all work would wait until a worker looks.
            _log.exception("wake-ups lost; workers find the work by themselves")
