"""Indexes entries of memories: those that a revision was written without, and vectors of all.

The revision that changes entries writes their words. The release before writes none.
"""

import math
from collections.abc import Mapping, Sequence
from uuid import UUID

from service.domain.calls.ledger import CallScope
from service.llm.embeddings.embedding import Embedder, TextVector
from service.usecases.memories.kinds import KindUseCases
from storage.engine.database import Database
from storage.memories import entries, memories

#: Entries of a batch of vectors.
EMBED_ENTRIES = 64


class EntryIndexer:
    """Indexes entries in one process."""

    def __init__(self, database: Database, kinds: Mapping[str, KindUseCases]) -> None:
        self._database = database
        self._kinds = kinds

    async def catch_up(self, tenant_id: UUID, session_key: UUID) -> bool:
        """Writes the entries of one memory of a session that lacks some, if there is one.

        False when it has a later revision by now, and lacks them still. Raises StorageError.
        """
        async with self._database.transaction(tenant_id, name="index") as tx:
            behind = await entries.find_behind(tx, session_key)
        return behind is None or await self.rewrite(tenant_id, session_key, behind)

    async def rewrite(
        self,
        tenant_id: UUID,
        session_key: UUID,
        memory_id: UUID,
        *,
        rewritten: set[UUID] | None = None,
    ) -> bool:
        """Makes a memory's entries those of its newest revision; False if it moved meanwhile.

        With `rewritten` also entries that seem right are written, without those in it, to which
        it adds what it wrote. Raises StorageError.
        """
        # Without a lock: a large memory takes seconds.
        async with self._database.snapshot(tenant_id, name="index") as tx:
            stored = await memories.get(tx, session_key, memory_id)
            if stored is None:
                return True
            made = await self._kinds[stored.kind].entries(tx, stored)
            there = await entries.read_all(tx, session_key, memory_id)
        found = {one.entry.entry_id: one for one in there}
        due = {one.entry.entry_id: one for one in made}
        again = set() if rewritten is None else due.keys() - rewritten
        wrong = [one for id_, one in due.items() if id_ in again or found.get(id_) != one]
        of = (session_key, memory_id, stored.revision)
        # Each batch commits by itself: steps come between, and what is written stays.
        for begin in range(0, len(wrong), entries.BATCH_ENTRIES):
            batch = wrong[begin : begin + entries.BATCH_ENTRIES]
            async with self._database.transaction(tenant_id, name="index") as tx:
                if not await entries.rewrite(tx, *of, batch):
                    return False
            if rewritten is not None:
                rewritten.update(one.entry.entry_id for one in batch)
        async with self._database.transaction(tenant_id, name="index") as tx:
            return await entries.complete(tx, *of, list(due))

    async def embed(self, embedder: Embedder, scope: CallScope) -> None:
        """Writes vectors of the next entries of a session that have none.

        Raises EmbeddingFailed, BudgetExhausted, Gone, StorageError.
        """
        tenant_id, key = scope.tenant_id, scope.session_key
        async with self._database.transaction(tenant_id, name="index") as tx:
            found = await entries.read_unembedded(tx, key, EMBED_ENTRIES)
        if not found:
            return
        made = await embedder.embed_chunks([one.entry.text for one in found], scope=scope)
        vectors = [_vector(parts) for parts in made]
        async with self._database.transaction(tenant_id, name="index") as tx:
            await entries.write_vectors(tx, key, embedder.model, found, vectors)


def _vector(parts: Sequence[TextVector]) -> Sequence[float]:
    """Returns one vector of length 1 for a text that may have several parts."""
    if len(parts) == 1:
        return parts[0].values
    sums = [math.fsum(column) for column in zip(*(one.values for one in parts), strict=True)]
    length = math.hypot(*sums)
    return [one / length for one in sums]
