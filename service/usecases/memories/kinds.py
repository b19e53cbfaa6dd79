"""Defines what the use cases need of each kind of memory, besides its spec.

`service.app.kinds` has all of them.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from uuid import UUID

from service.domain.operations.verifying.chain import Difference
from service.domain.search.entries import WrittenEntry
from service.domain.values.json_values import Json
from service.domain.values.memory_specs import MemorySpec
from service.settings.config import Limits
from storage.engine.claims import Claim
from storage.engine.database import Transaction
from storage.memories.memories import StoredMemory

#: A difference, or how many revisions were looked at.
Findings = AsyncGenerator[Difference | int]


@dataclass(frozen=True, kw_only=True, slots=True)
class FirstRevision:
    """What a new memory begins with."""

    #: SHA-256 of its value.
    digest: bytes = hashlib.sha256().digest()
    #: Canonical JSON, where the newest value is stored whole with the memory.
    value: str | None = None
    #: Writes what else it begins with, by session_key and memory_id; None: nothing.
    write: Callable[[Transaction, UUID, UUID], Awaitable[None]] | None = None


class KindUseCases(ABC):
    """What is different for memories of one kind."""

    def first(self, spec: MemorySpec) -> FirstRevision:
        """Returns what a new memory begins with. Raises SchemaInvalid."""
        return FirstRevision()

    @abstractmethod
    def verify(self, tx: Transaction, stored: StoredMemory) -> Findings:
        """Yields what differs in a memory. `tx` is a snapshot."""

    async def entries(self, tx: Transaction, stored: StoredMemory) -> Sequence[WrittenEntry]:
        """Returns what searches find in a memory at its newest revision. `tx` is a snapshot."""
        return ()

    @abstractmethod
    async def shown_bytes(
        self, tx: Transaction, stored: Sequence[StoredMemory], upto: int
    ) -> Sequence[int]:
        """Returns about how much one prompt of a reader shows of each, if the log ends at `upto`.

        All are of one session.
        """

    async def state(self, tx: Transaction, stored: StoredMemory, revision: int) -> tuple[Json, int]:
        """Returns what is compared of a revision that exists, and its applied position.

        Only of kinds that have states, as `restore`.
        """
        raise NotImplementedError

    async def restore(
        self, tx: Transaction, held: Claim, revision: int, *, comment: str, limits: Limits
    ) -> None:
        """Commits a new revision with the state of an earlier one."""
        raise NotImplementedError
