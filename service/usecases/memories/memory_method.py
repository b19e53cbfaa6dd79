"""Memory methods: defines how a kind of memory reports to the step engine what it needs.

A method says what a memory needs next; `StepEngine` does it. So a method claims nothing,
knows no limit of time, and catches no error of a step.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from service.domain.prompting.flows import Flow
from service.domain.values.work_items import WorkItem
from service.usecases.memories.step_tools import StepTools
from storage.engine.claims import Claim
from storage.engine.database import Transaction
from storage.memories.revisions import NewRevision


class StepWork(Protocol):
    """What a worker keeps of a claimed memory between two steps."""

    @property
    def held(self) -> Claim:
        """The claim, as the newest revision left it."""
        ...


FoundT = TypeVar("FoundT")
WorkT = TypeVar("WorkT", bound=StepWork)


@dataclass(frozen=True, kw_only=True, slots=True)
class ClaimTransaction:
    """How the engine claims memories of a kind."""

    #: What its transaction is called.
    name: str
    #: The first word of the occasions of steps whose last word is where they end: the engine
    #: looks for one that a worker paid for and did not commit. Empty: there are none.
    occasion: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """How long one worker may work on one memory."""

    #: The event loop's time at which it ends.
    until: float
    #: Ends it at once, when it is set.
    stop: asyncio.Event | None = None

    @property
    def is_over(self) -> bool:
        """Returns whether nothing more is begun."""
        is_late = asyncio.get_running_loop().time() > self.until
        return is_late or (self.stop is not None and self.stop.is_set())


@dataclass(frozen=True, kw_only=True, slots=True)
class StepWait:
    """Nothing is to be done now."""

    #: When a worker looks again, from now; None: when an append, a time that is stored, or a
    #: client wakes the memory.
    seconds: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryChange(Generic[WorkT]):
    """A revision that is to be committed."""

    new: NewRevision
    #: The work after it.
    work: WorkT
    #: Writes it in a transaction, given with its trace; returns whether there is more to do.
    #: Raises Fenced.
    write: Callable[[Transaction, NewRevision], Awaitable[bool]]
    #: What the transaction is called.
    name: str
    #: Whether the transaction is one of `Database.direct`: one statement in one round trip.
    is_direct: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class StepPart(Generic[WorkT]):
    """What may fail for itself, and then is tried again, stalls its memory, or is skipped."""

    #: It reads the chunks after this position …
    after_position: int
    #: … up to this one.
    to_position: int
    #: What is done instead, given the cause, where the spec says to skip: a change, or work that
    #: goes on without it. None: it cannot be skipped.
    skip: Callable[[str], MemoryChange[WorkT] | WorkT] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryStep(Generic[WorkT]):
    """A flow of model calls, and the revision that it makes."""

    #: The work before it.
    work: WorkT
    #: What it reads, and what is done when it fails.
    part: StepPart[WorkT]
    #: What its calls are made for, unique within the memory.
    occasion: str
    #: Begins the flow; runs beside the event loop.
    flow: Callable[[], Flow[Any]]
    #: Makes a change of the flow's result, or work that goes on without one; runs beside the
    #: event loop.
    made: Callable[[Any], MemoryChange[WorkT] | WorkT]
    #: Where the memory has levels, that of what it makes.
    level: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class StepBatch(Generic[WorkT]):
    """Parts that a method makes and commits by itself, many at once."""

    #: The work before it.
    work: WorkT
    #: Runs until its turn ends or nothing is left. Raises PartFailed.
    run: Callable[[Turn], Awaitable[WorkT | StepWait]]

    @property
    def part(self) -> StepPart[WorkT]:
        """What stalls the memory when another error than PartFailed is raised."""
        position = self.work.held.applied_position
        return StepPart(after_position=position, to_position=position + 1)


#: What a memory needs.
StepNext = MemoryStep[WorkT] | StepBatch[WorkT] | MemoryChange[WorkT] | StepWait


class PartFailed(Exception):
    """A part of a batch could not be made; `error` says why."""

    def __init__(self, part: StepPart[Any], error: Exception) -> None:
        super().__init__(str(error))
        self.part = part
        self.error = error


class MemoryMethod(ABC, Generic[FoundT, WorkT]):
    """What is different in each kind of memory, when a worker advances one."""

    kind: ClassVar[str]
    claim: ClassVar[ClaimTransaction]

    def __init__(self, tools: StepTools) -> None:
        self._tools = tools
        self._database = tools.database

    async def stays_idle(self, item: WorkItem) -> bool:
        """Returns whether a memory has nothing to do yet, without claiming it."""
        return False

    async def lost(self, held: Claim) -> StepWait:
        """Says when a worker looks again at a memory whose result was thrown away."""
        return StepWait()

    @abstractmethod
    async def read(self, tx: Transaction, held: Claim) -> FoundT:
        """Reads what `load` needs, in the transaction of the claim."""

    @abstractmethod
    async def load(self, held: Claim, found: FoundT) -> WorkT:
        """Makes the work of what was read, when the transaction is closed."""

    @abstractmethod
    async def next(self, work: WorkT) -> StepNext[WorkT]:
        """Says what the memory needs next; reads the log for it, and leaves an idle memory.

        Raises Fenced when another worker has taken the memory over, and StorageError.
        """
