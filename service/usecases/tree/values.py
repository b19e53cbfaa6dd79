"""The values of trees: their outlines."""

from uuid import UUID

from service.usecases.log.lookup import find_memory
from service.usecases.memories.memories import MemoryReading, reading_of
from service.usecases.tree.outline import read_outline
from storage.engine.database import Database


class TreeValues:
    """Reads trees as the values of memories."""

    def __init__(self, database: Database, token_key: bytes) -> None:
        self._database = database
        self._token_key = token_key

    async def read(
        self,
        tenant_id: UUID,
        session: str,
        name: str,
        *,
        revision: int | None = None,
        position: int | None = None,
    ) -> MemoryReading:
        """Returns the outline at a revision, or the newest. Raises NotFound, OutOfRange."""
        assert position is None, "a tree has a revision for each position"
        async with self._database.transaction(tenant_id, name="memories") as tx:
            stored = await find_memory(tx, session, name)
            outline = await read_outline(tx, stored, revision)
        return reading_of(
            self._token_key,
            stored,
            outline.value_json(),
            outline.revision,
            outline.applied_position,
        )
