"""Method registry: gives each memory to the engine that runs the method of its kind.

Nothing here, and nothing in the engine, knows the kinds: `service.app.kinds` has them.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from service.app.kinds import KINDS
from service.domain.values.work_items import WorkItem
from service.usecases.memories.step_engine import StepEngine
from service.usecases.memories.step_tools import StepTools
from storage.engine.database import Database
from storage.memories import memories

#: Memories whose kind one worker process remembers; it never changes.
REMEMBERED_KINDS = 10_000


def engines_of(tools: StepTools) -> Mapping[str, StepEngine[Any]]:
    """Returns an engine for each kind of memory."""
    return {name: StepEngine(kind.method(tools), tools) for name, kind in KINDS.items()}


class MethodRegistry:
    """Advances memories of every kind in one worker process."""

    def __init__(self, database: Database, engines: Mapping[str, StepEngine[Any]]) -> None:
        self._database = database
        self._engines = engines
        self._kinds: OrderedDict[tuple[UUID, UUID], str] = OrderedDict()

    async def drain(self, item: WorkItem, *, stop: asyncio.Event | None = None) -> float | None:
        """Advances a memory as `StepEngine.drain` does; None also when there is none."""
        kind = await self._kind(item)
        return None if kind is None else await self._engines[kind].drain(item, stop=stop)

    async def _kind(self, item: WorkItem) -> str | None:
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
