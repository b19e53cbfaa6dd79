"""Verifies the revisions of memories of all kinds."""

from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from typing import Generic, TypeVar

from service.domain.operations.verifying.chain import ChainCheck, Difference, RevisionRow
from storage.engine.database import Transaction
from storage.memories.memories import StoredMemory
from storage.operations import verifying

#: Revisions between two reports of progress.
PROGRESS_REVISIONS = 1000

_Row = TypeVar("_Row")


class RevisionChain:
    """Reads the revisions of a memory, and passes each to the check that all kinds share."""

    def __init__(self, tx: Transaction, stored: StoredMemory) -> None:
        self._rows = verifying.revisions(tx, stored.session_key, stored.memory_id)
        self._check = ChainCheck()
        self._stored = stored
        self.count = 0

    async def rows(self) -> AsyncGenerator[tuple[RevisionRow, Iterable[Difference | int]]]:
        """Yields every revision, with the differences and progress to report before its own."""
        async for row in self._rows:
            self.count += 1
            told: list[Difference | int] = list(self._check.revision(row))
            if self.count % PROGRESS_REVISIONS == 0:
                told.append(self.count)
            yield row, told

    def finish(self) -> Iterable[Difference | int]:
        """Compares the memory's row with its revisions."""
        stored = self._stored
        found = self._check.finish(
            stored.revision,
            stored.applied_position,
            head=stored.head,
            status=stored.status,
            has_open_letter=stored.stall is not None,
        )
        return [*found, self.count]


class RowsAhead(Generic[_Row]):
    """Reads rows that belong to revisions, in their order; reads one row ahead."""

    def __init__(self, rows: AsyncIterator[tuple[int, _Row]]) -> None:
        self._rows = rows
        self._next: tuple[int, _Row] | None = None
        self._is_begun = False

    async def of(self, revision: int) -> list[_Row]:
        """Returns the rows of a revision; skips those of earlier ones."""
        found: list[_Row] = []
        while (one := await self._peek()) is not None and one[0] <= revision:
            if one[0] == revision:
                found.append(one[1])
            self._next = await anext(self._rows, None)
        return found

    async def _peek(self) -> tuple[int, _Row] | None:
        if not self._is_begun:
            self._is_begun = True
            self._next = await anext(self._rows, None)
        return self._next
