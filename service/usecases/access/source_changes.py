"""Applies quarantines and releases of sources to memories, each in a transaction of its own."""

from uuid import UUID

import structlog

from service.domain.prism.spec import PrismSpec
from service.usecases.log.wake_ups import WakeUps
from service.usecases.memories.going_back import ReleasedSource, UndoneRevisions, go_back
from service.usecases.prism.quarantine import apply_quarantines
from storage.engine.claims import Claim
from storage.engine.database import Database, Transaction
from storage.engine.errors import StorageError
from storage.memories import revisions, source_changes
from storage.memories.source_changes import SourceChange
from storage.search import chunk_index

_log = structlog.get_logger("palimpsest.sources")

#: How often a worker looks for memories with changes to apply.
LOOK_SECONDS = 2.0
#: Memories that one look finds.
LOOK_MEMORIES = 1000


class SourceChanger:
    """Applies what a call has left to do, in one worker process. Any number may do so."""

    def __init__(self, database: Database, wake_ups: WakeUps, *, max_memory_bytes: int) -> None:
        self._database = database
        self._wake_ups = wake_ups
        self._max_memory_bytes = max_memory_bytes

    async def look(self) -> None:
        """Applies the changes of all memories that have some. Raises StorageError.

        A memory for which that fails keeps them, and the others go on.
        """
        async with self._database.sweeping(name="source-changes") as tx:
            found = await source_changes.list_pending(tx, LOOK_MEMORIES)
        for tenant_id, key, memory_id in found:
            try:
                await self._apply(tenant_id, key, memory_id)
            except StorageError as error:
                _log.warning("sources change later", memory=str(memory_id), cause=str(error))
            except Exception:
                # One memory must not keep the others from what a quarantine undoes.
                _log.exception("sources cannot change", memory=str(memory_id))

    async def _apply(self, tenant_id: UUID, key: UUID, memory_id: UUID) -> None:
        async with self._database.transaction(tenant_id, name="source-changes") as tx:
            if not await source_changes.lock(tx, key, memory_id):
                return
            await apply_changes(tx, key, memory_id, max_memory_bytes=self._max_memory_bytes)
        self._wake_ups.add_memories(tenant_id, [(key, memory_id)])


async def apply_changes(
    tx: Transaction, key: UUID, memory_id: UUID, *, max_memory_bytes: int
) -> UndoneRevisions | None:
    """Applies what a memory has yet to apply, and clears it; None where it stays as it is.

    Releases first: what is quarantined now is undone with each of them. The caller has the memory
    locked, or just fenced off.
    """
    done: UndoneRevisions | None = None
    held = await revisions.lock(tx, key, memory_id)
    assert held is not None, "it was locked just now"
    for change in sorted(source_changes.of(held), key=lambda one: one.since is None):
        undone = await _applied(tx, held, change, max_memory_bytes)
        if undone is not None:
            done = undone
            held = await revisions.lock(tx, key, memory_id)
            assert held is not None, "it is locked"
    await source_changes.clear(tx, held)
    # Entries are written again with the chunks that they rest on.
    await chunk_index.note_unlisted(tx, key)
    return done


async def _applied(
    tx: Transaction, held: Claim, change: SourceChange, max_memory_bytes: int
) -> UndoneRevisions | None:
    released, comment = None, f"source {change.source!r} is quarantined"
    if change.since is not None:
        released = ReleasedSource(source=change.source, since=change.since)
        comment = f"source {change.source!r} is released"
    if held.spec.kind != PrismSpec.kind:
        return await go_back(tx, held, comment=comment, released=released)
    return await apply_quarantines(
        tx, held, max_memory_bytes=max_memory_bytes, comment=comment, released=released
    )
