"""Limits how many calls of one memory may be with its model at once."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID


class Slots:
    """The calls of one process that makes them, by the memory that they are for.

    A slot is held while a model thinks, not while a call's beginning or reply is written: so
    that as many are always with the model, others have to be about to begin.
    """

    def __init__(self) -> None:
        self._free: dict[UUID, asyncio.Semaphore] = {}
        self._users: dict[UUID, int] = {}

    @asynccontextmanager
    async def one(self, owner_id: UUID, at_once: int) -> AsyncIterator[None]:
        """A slot of `at_once`, in turn; 0: there is no bound."""
        if not at_once:
            yield
            return
        free = self._free.setdefault(owner_id, asyncio.Semaphore(at_once))
        self._users[owner_id] = self._users.get(owner_id, 0) + 1
        try:
            async with free:
                yield
        finally:
            self._users[owner_id] -= 1
            if not self._users[owner_id]:
                del self._free[owner_id], self._users[owner_id]
