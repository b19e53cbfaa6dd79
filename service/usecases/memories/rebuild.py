"""Rebuilds memories: reads the whole log again into a new memory, beside the old one."""

from uuid import UUID

from service.domain.memories.specs import SpecChanges
from service.llm.gateway.allowed import AllowedModels
from service.usecases.log.lookup import refuse_other_kind
from service.usecases.memories.long_operations import FoundOperation
from service.usecases.memories.memories import Memories


class Rebuilder:
    """Requests rebuilds."""

    def __init__(self, memories: Memories, models: AllowedModels) -> None:
        self._memories = memories
        self._models = models

    async def rebuild(
        self, tenant_id: UUID, session: str, names: tuple[str, str], changes: SpecChanges
    ) -> FoundOperation:
        """Creates the second of `names` from the first, with other settings.

        Raises NotFound, AlreadyExists, Exhausted, InvalidInput (schema; model that is not
        allowed), FailedPrecondition (changes for memories of another kind).
        """
        old, new = names
        source = await self._memories.get(tenant_id, session, old)
        for kind in changes.fields:
            refuse_other_kind(old, source.spec, kind)
        spec = changes.made(source.spec)
        # A model that is not named anew is taken over, and may be allowed no more.
        self._models.check_spec(spec, f"{source.kind}.")
        return await self._memories.rebuild(tenant_id, session, new, spec, old)
