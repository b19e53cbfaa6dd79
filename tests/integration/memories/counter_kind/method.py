"""The method of counters: each step counts a few chunks, without any model."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from service.domain.log.chunks import LoggedChunk
from service.domain.prompting.flows import Flow
from service.usecases.memories.memory_method import (
    ClaimTransaction,
    MemoryChange,
    MemoryMethod,
    MemoryStep,
    StepPart,
    StepWait,
)
from storage.engine.claims import Claim, Fenced
from storage.engine.database import Transaction
from storage.log import chunks, sessions
from storage.memories import revisions
from storage.memories.revisions import NewRevision
from tests.integration.memories.counter_kind import rows
from tests.integration.memories.counter_kind.spec import CounterSpec


@dataclass(frozen=True, kw_only=True, slots=True)
class CounterWork:
    """What a worker keeps of a counter between two steps."""

    held: Claim


class CounterMethod(MemoryMethod[None, CounterWork]):
    """Counts the chunks of logs."""

    kind = CounterSpec.kind
    claim = ClaimTransaction(name="claim.counter")

    async def read(self, tx: Transaction, held: Claim) -> None:
        """Reads nothing, since the count is how far the memory has read."""

    async def load(self, held: Claim, found: None) -> CounterWork:
        """Makes the work."""
        return CounterWork(held=held)

    async def next(self, work: CounterWork) -> MemoryStep[CounterWork] | StepWait:
        """Counts the next chunks, or leaves a counter that is at the head."""
        held = work.held
        key, applied = held.session_key, held.applied_position
        async with self._database.transaction(held.tenant_id, name="step") as tx:
            found = await chunks.read(tx, key, applied, CounterSpec.of(held).step_chunks)
            if not found:
                head = await sessions.locked_head(tx, key)
                if head is None:
                    raise Fenced
                # What came just now is counted at once.
                is_idle = head == applied and await revisions.clear_work(tx, held)
                return StepWait(seconds=None if is_idle else 0.0)
        upto = found[-1].position

        def made(counted: int) -> MemoryChange[CounterWork]:
            new = NewRevision(kind="step", to_position=upto, digest=rows.digest(counted))
            return MemoryChange(
                new=new,
                work=replace(work, held=revisions.advanced(held, new)),
                write=lambda tx, new: rows.commit(tx, held, new, counted),
                name="commit.counter",
            )

        return MemoryStep(
            work=work,
            part=StepPart(after_position=applied, to_position=upto),
            occasion=f"count:{held.revision + 1}:{upto}",
            flow=lambda: _count(applied, found),
            made=made,
        )


def _count(before: int, found: Sequence[LoggedChunk]) -> Flow[int]:
    yield from ()
    return before + len(found)
