"""Registers the kinds of memories, with what processes need of each.

`service.domain.memories.specs` has the specs of the same kinds.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from service.domain.prism.default_memory import NAME, SPEC
from service.domain.prism.spec import PrismSpec
from service.domain.state.spec import StateSpec
from service.domain.tree.spec import TreeSpec
from service.settings.config import Limits
from service.usecases.answers.readers.answering import MemoryReader, ReaderKit
from service.usecases.answers.readers.memwalker import Navigator
from service.usecases.answers.readers.pcc import ContextReader
from service.usecases.answers.readers.prism import PrismReader
from service.usecases.log.append import FirstAppended
from service.usecases.log.room import FindRoom, find_unlimited
from service.usecases.log.wake_ups import WakeUps
from service.usecases.memories.default_memories import DefaultMemories
from service.usecases.memories.kinds import KindUseCases
from service.usecases.memories.memories import Memories, ValueReader
from service.usecases.memories.memory_method import MemoryMethod
from service.usecases.memories.progress_watcher import ProgressWatcher
from service.usecases.memories.step_tools import StepTools
from service.usecases.prism.kind import PrismUseCases
from service.usecases.prism.method import PrismMethod
from service.usecases.spend.comparing import Comparer
from service.usecases.spend.costs import Costs, read_accounting
from service.usecases.state.kind import StateUseCases, StateValues
from service.usecases.state.method import StateMethod
from service.usecases.state.working_contexts import WorkingContexts
from service.usecases.tree.kind import TreeUseCases, TreeValues
from service.usecases.tree.method import TreeMethod
from storage.engine.database import Database


@dataclass(frozen=True, kw_only=True, slots=True)
class RegisteredKind:
    """A kind of memory."""

    use_cases: KindUseCases
    #: Advances memories.
    method: Callable[[StepTools], MemoryMethod[Any, Any]]
    #: Answers the questions that name no other reader.
    reader: Callable[[ReaderKit], MemoryReader]
    #: Reads values; None: the newest one is stored whole with the memory.
    values: Callable[[Database, ProgressWatcher, bytes, Limits], ValueReader] | None = None


#: All kinds of memories, by name.
KINDS: dict[str, RegisteredKind] = {
    PrismSpec.kind: RegisteredKind(
        use_cases=PrismUseCases(), method=PrismMethod, reader=PrismReader
    ),
    TreeSpec.kind: RegisteredKind(
        use_cases=TreeUseCases(),
        method=TreeMethod,
        reader=Navigator,
        values=lambda database, _, token_key, __: TreeValues(database, token_key),
    ),
    StateSpec.kind: RegisteredKind(
        use_cases=StateUseCases(),
        method=StateMethod,
        reader=ContextReader,
        values=lambda *wired: StateValues(WorkingContexts(*wired)),
    ),
}


def use_cases() -> Mapping[str, KindUseCases]:
    """Returns what is different for the memories of each kind."""
    return {name: kind.use_cases for name, kind in KINDS.items()}


def default_memories() -> FirstAppended:
    """Returns what makes the default memories of sessions."""
    return DefaultMemories(NAME, SPEC, KINDS[SPEC.kind].use_cases.first(SPEC)).make


def memories_of(
    database: Database,
    wake_ups: WakeUps,
    watcher: ProgressWatcher,
    token_key: bytes,
    limits: Limits,
    find_room: FindRoom = find_unlimited,
) -> Memories:
    """Returns what clients do with memories of every kind that there is."""
    values = {
        name: kind.values(database, watcher, token_key, limits)
        for name, kind in KINDS.items()
        if kind.values is not None
    }
    return Memories(
        *(database, wake_ups, watcher, token_key, limits, use_cases(), values), find_room
    )


def costs_of(database: Database, comparer: Comparer) -> Costs:
    """Returns what clients ask about costs, with what only some kinds of memories have."""
    return Costs(
        database,
        {
            PrismSpec.kind: lambda tenant_id, stored, *_: comparer.compare(tenant_id, stored),
            StateSpec.kind: lambda *asked: read_accounting(database, *asked),
        },
    )
