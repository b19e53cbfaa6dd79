"""Method registry: gives each memory to the engine that runs the method of its kind.

To register a kind of memory, write its `MemoryMethod` (`service.usecases.memories.memory_method`)
in the room of the kind, and add it to `METHODS`. A test passes engines of its own to
`MethodRegistry`. Nothing else here, and nothing in the engine, knows the kinds.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from service.domain.values.memory_kinds import MemoryKind
from service.domain.values.work_items import WorkItem
from service.usecases.memories.memory_method import MemoryMethod
from service.usecases.memories.step_engine import StepEngine
from service.usecases.memories.step_tools import StepTools
from service.usecases.prism.method import PrismMethod
from service.usecases.state.method import StateMethod
from service.usecases.tree.method import TreeMethod
from storage.engine.database import Database
from storage.memories import memories

#: Memories whose kind one worker process remembers; it never changes.
REMEMBERED_KINDS = 10_000


#: The methods of all kinds of memories.
METHODS: Sequence[type[MemoryMethod[Any, Any]]] = (PrismMethod, TreeMethod, StateMethod)


def engines_of(tools: StepTools) -> Mapping[MemoryKind, StepEngine[Any]]:
    """Returns an engine for each kind of memory."""
    return {method.kind: StepEngine(method(tools), tools) for method in METHODS}


class MethodRegistry:
    """Advances memories of every kind in one worker process."""

    def __init__(self, database: Database, engines: Mapping[MemoryKind, StepEngine[Any]]) -> None:
        self._database = database
        self._engines = engines
        self._kinds: OrderedDict[tuple[UUID, UUID], MemoryKind] = OrderedDict()

    async def drain(self, item: WorkItem, *, stop: asyncio.Event | None = None) -> float | None:
        """Advances a memory as `StepEngine.drain` does; None also when there is none."""
        kind = await self._kind(item)
        return None if kind is None else await self._engines[kind].drain(item, stop=stop)

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
