"""Rebuilding: the whole log is read again into a new memory, beside the old one."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from uuid import UUID

from service.domain.errors import DeadlineExceeded
from service.domain.specs import SpecChanges
from service.usecases.consistency import Watcher, not_applied_in_time, refuse_stopped
from service.usecases.lookup import item_key, refuse_other_kind
from service.usecases.memories import Memories
from storage.memories import StoredMemory


class Rebuilder:
    """Rebuilds memories and tells how far they are."""

    def __init__(self, memories: Memories, watcher: Watcher) -> None:
        self._memories = memories
        self._watcher = watcher

    async def rebuild(
        self,
        tenant_id: UUID,
        session: str,
        names: tuple[str, str],
        changes: SpecChanges,
        *,
        deadline: float | None,
    ) -> AsyncGenerator[tuple[StoredMemory, bool]]:
        """Makes the second of `names` from the first; it as it is, and whether it is done.

        Raises NotFound, AlreadyExists, Exhausted, SchemaInvalid, FailedPrecondition (stalled,
        or changes for memories of another kind), DeadlineExceeded; the memory goes on
        whatever becomes of the call.
        """
        old, new = names
        source = await self._memories.get(tenant_id, session, old)
        for kind in changes.kinds():
            refuse_other_kind(old, source.spec, kind)
        spec = changes.made(source.spec)
        made = await self._memories.create(tenant_id, session, new, spec, rebuilt_from=old)
        goal = made.head
        yield made, goal == 0
        if goal == 0:
            return
        key = item_key(made)
        applied, revision = made.applied_position, made.revision
        async with aclosing(self._watcher.progress(tenant_id, key, deadline=deadline)) as seen:
            async for progress in seen:
                refuse_stopped(new, goal, progress)
                applied, revision = progress.applied_position, progress.revision
                yield await self._memories.get(tenant_id, session, new), applied >= goal
                if applied >= goal:
                    return
        late: DeadlineExceeded = not_applied_in_time(new, goal, applied, revision)
        raise late
