"""Rebuilding: the whole log is read again into a new memory, beside the old one."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from uuid import UUID, uuid4

from service.domain.memories.long_operations import OperationId
from service.domain.memories.specs import SpecChanges
from service.domain.values.errors import DeadlineExceeded
from service.domain.values.memory_kinds import MemoryKind
from service.domain.values.tenancy import session_key
from service.llm.gateway.allowed import AllowedModels
from service.usecases.log.lookup import item_key, refuse_other_kind
from service.usecases.memories.consistency import (
    ProgressWatcher,
    not_applied_in_time,
    refuse_stopped,
)
from service.usecases.memories.memories import Memories
from storage.memories.memories import StoredMemory
from storage.memories.progress import Progress


@dataclass(frozen=True, kw_only=True, slots=True)
class RebuildEvent:
    """How far a rebuild is."""

    memory: StoredMemory
    #: Everything that was in the log when it was requested is applied.
    done: bool
    #: Of the first event.
    operation: OperationId | None = None


class Rebuilder:
    """Rebuilds memories and tells how far they are."""

    def __init__(self, memories: Memories, watcher: ProgressWatcher, models: AllowedModels) -> None:
        self._memories = memories
        self._models = models
        self._watcher = watcher

    async def rebuild(
        self,
        tenant_id: UUID,
        session: str,
        names: tuple[str, str],
        changes: SpecChanges,
        *,
        deadline: float | None,
    ) -> AsyncGenerator[RebuildEvent]:
        """Makes the second of `names` from the first, and reports how far it is.

        Raises NotFound, AlreadyExists, Exhausted, InvalidInput (schema; model that is not
        allowed), FailedPrecondition (stalled, or changes for memories of another kind),
        DeadlineExceeded; the memory goes on whatever becomes of the call.
        """
        old, new = names
        source = await self._memories.get(tenant_id, session, old)
        for kind in changes.kinds():
            refuse_other_kind(old, source.spec, kind)
        spec = changes.made(source.spec)
        # A model that is not named anew is taken over, and may be allowed no more.
        self._models.check_spec(spec, "")
        operation = OperationId(session_key=session_key(tenant_id, session), operation_id=uuid4())
        made = await self._memories.create(
            tenant_id, session, new, spec, rebuilt_from=old, operation_id=operation
        )
        goal = made.head
        yield RebuildEvent(memory=made, done=goal == 0, operation=operation)
        if goal == 0:
            return
        key = item_key(made)
        applied, revision = made.applied_position, made.revision
        looks = self._watcher.progress_of_read(tenant_id, key, deadline=deadline)
        async with aclosing(looks) as seen:
            async for progress in seen:
                applied, revision = progress.applied_position, progress.revision
                is_done = _is_done(made, progress)
                if not is_done:
                    # It may have stopped at its last position, with a vector to make.
                    refuse_stopped(new, max(goal, applied + 1), progress)
                stored = await self._memories.get(tenant_id, session, new)
                yield RebuildEvent(memory=stored, done=is_done)
                if is_done:
                    return
        late: DeadlineExceeded = not_applied_in_time(new, goal, applied, revision)
        raise late


def _is_done(made: StoredMemory, progress: Progress) -> bool:
    """Whether all that was in the log when a memory was made is in it. A state memory
    leaves what is recent, so it is done when it is idle; or has gone on with later chunks."""
    if made.kind == MemoryKind.STATE:
        return progress.is_idle or progress.applied_position > made.head
    return progress.applied_position >= made.head
