"""Makes the default memory of a session, in the transaction of its first append."""

from collections.abc import Sequence
from uuid import UUID

from service.domain.values.memory_specs import MemorySpec
from service.domain.values.tenancy import memory_id
from service.usecases.memories.kinds import FirstRevision
from storage.engine.database import Transaction
from storage.memories import memories


class DefaultMemories:
    """Makes memories of one name and spec."""

    def __init__(self, name: str, spec: MemorySpec, first: FirstRevision) -> None:
        """`first` is what each begins with; its value is all of it."""
        self._name = name
        self._spec = spec
        self._first = first

    async def make(self, tx: Transaction, session_keys: Sequence[UUID]) -> None:
        """Makes one for each session that has no memory. The caller has locked the sessions."""
        await memories.create_first(
            tx,
            [(key, memory_id(key, self._name)) for key in session_keys],
            name=self._name,
            spec=self._spec,
            digest=self._first.digest,
            value=self._first.value,
        )
