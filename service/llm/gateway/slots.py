"""Limits how many calls of one memory may be with its model at once."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID
from weakref import WeakValueDictionary


class Slots:
    """Counts the calls of one executor by the memory that they are for.

    A call occupies a slot while its model thinks, not while its intent or reply is written. To
    keep all slots in use, more calls have to be about to begin.
    """

    def __init__(self) -> None:
        #: Of owners with calls: these reference them.
        self._free: WeakValueDictionary[UUID, asyncio.Semaphore] = WeakValueDictionary()

    @asynccontextmanager
    async def one(self, owner_id: UUID, at_once: int) -> AsyncIterator[None]:
        """Waits for a slot of `at_once`, first come, first served; 0: there is no bound."""
        if not at_once:
            yield
            return
        free = self._free.setdefault(owner_id, asyncio.Semaphore(at_once))
        async with free:
            yield
