"""The values of state memories: their working contexts."""

from uuid import UUID

from service.domain.state.working_context import as_value
from service.domain.values.json_values import canonical
from service.usecases.memories.memories import MemoryReading
from service.usecases.state.working_contexts import WorkingContexts


class StateValues:
    """Reads working contexts as the values of memories."""

    def __init__(self, contexts: WorkingContexts) -> None:
        self._contexts = contexts

    async def read(
        self,
        tenant_id: UUID,
        session: str,
        name: str,
        *,
        revision: int | None = None,
        position: int | None = None,
    ) -> MemoryReading:
        """Returns the context at a revision, at a position of the log, or the newest.

        Raises NotFound, OutOfRange.
        """
        if revision is not None:
            found = await self._contexts.read_revision(tenant_id, session, name, revision)
        else:
            found = await self._contexts.read(tenant_id, session, name, position=position)
        return MemoryReading(
            memory=found.memory,
            value_json=canonical(as_value(found.context)),
            revision=found.context.state.revision,
            applied_position=found.context.head,
            token=found.token,
        )
