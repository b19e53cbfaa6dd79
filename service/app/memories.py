"""Memories of all kinds."""

from service.domain.values.memory_kinds import MemoryKind
from service.settings.config import Limits
from service.usecases.log.wake_ups import WakeUps
from service.usecases.memories.memories import Memories, ValueReader
from service.usecases.memories.progress_watcher import ProgressWatcher
from service.usecases.state.values import StateValues
from service.usecases.state.working_contexts import WorkingContexts
from service.usecases.tree.values import TreeValues
from storage.engine.database import Database


def memories_of(
    database: Database,
    wake_ups: WakeUps,
    watcher: ProgressWatcher,
    token_key: bytes,
    limits: Limits,
) -> Memories:
    """Returns what clients do with memories of every kind that there is."""
    contexts = WorkingContexts(database, watcher, token_key, limits)
    values: dict[MemoryKind, ValueReader] = {
        MemoryKind.TREE: TreeValues(database, token_key),
        MemoryKind.STATE: StateValues(contexts),
    }
    return Memories(database, wake_ups, watcher, token_key, limits, values, contexts)
