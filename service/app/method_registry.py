"""Method registry: gives a memory to the method of its kind."""

import asyncio
from collections import OrderedDict
from typing import Protocol
from uuid import UUID

from service.domain.values.memory_kinds import MemoryKind
from service.domain.values.work_items import WorkItem
from storage.engine.database import Database
from storage.memories import memories

#: Memories whose kind one worker process remembers; it never changes.
REMEMBERED_KINDS = 10_000


class MemoryMethod(Protocol):
    """Advances memories of one kind."""

    async def drain(self, item: WorkItem, *, stop: asyncio.Event | None = None) -> float | None:
        """Advances a memory; returns the seconds until its next look, or None."""
        ...


class MethodRegistry:
    """Advances memories of every kind in one worker process."""

    def __init__(
        self,
        database: Database,
        prism_method: MemoryMethod,
        tree_method: MemoryMethod,
        state_method: MemoryMethod,
    ) -> None:
        self._database = database
        self._by_kind = {
            MemoryKind.PRISM: prism_method,
            MemoryKind.TREE: tree_method,
            MemoryKind.STATE: state_method,
        }
        self._kinds: OrderedDict[tuple[UUID, UUID], MemoryKind] = OrderedDict()

    async def drain(self, item: WorkItem, *, stop: asyncio.Event | None = None) -> float | None:
        """Advances a memory until it has no work; None when there is no more to do.

        Else the seconds until its next look. Raises StorageError.
        """
        kind = await self._kind(item)
        return None if kind is None else await self._by_kind[kind].drain(item, stop=stop)

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
