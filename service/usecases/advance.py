"""Advancing: a memory of any kind is worked on by whoever knows its kind."""

import asyncio
from collections import OrderedDict
from typing import Protocol
from uuid import UUID

from service.domain.specs import MemoryKind
from service.domain.work import WorkItem
from storage import memories
from storage.database import Database

#: Memories whose kind one worker process remembers; it never changes.
REMEMBERED_KINDS = 10_000


class Drains(Protocol):
    """Works on memories of one kind."""

    async def drain(self, item: WorkItem, *, stop: asyncio.Event | None = None) -> float | None:
        """Advances a memory; the seconds after which somebody should come back, or None."""
        ...


class Advancer:
    """Advances memories in one worker process."""

    def __init__(
        self, database: Database, reviser: Drains, builder: Drains, compressor: Drains
    ) -> None:
        self._database = database
        self._drains = {
            MemoryKind.PRISM: reviser,
            MemoryKind.TREE: builder,
            MemoryKind.STATE: compressor,
        }
        self._kinds: OrderedDict[tuple[UUID, UUID], MemoryKind] = OrderedDict()

    async def drain(self, item: WorkItem, *, stop: asyncio.Event | None = None) -> float | None:
        """Advances a memory until it has no work; None when there is no more to do.

        Else the seconds after which somebody should come back. Raises StorageError.
        """
        kind = await self._kind(item)
        return None if kind is None else await self._drains[kind].drain(item, stop=stop)

    async def _kind(self, item: WorkItem) -> MemoryKind | None:
        key = (item.session_key, item.item_id)
        kind = self._kinds.get(key)
        if kind is None:
            async with self._database.transaction(item.tenant_id, name="step") as tx:
                kind = await memories.find_kind(tx, *key)
            if kind is None:
                return None
            self._kinds[key] = kind
            if len(self._kinds) > REMEMBERED_KINDS:
                self._kinds.popitem(last=False)
        self._kinds.move_to_end(key)
        return kind
