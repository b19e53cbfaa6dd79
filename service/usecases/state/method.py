"""State method: compresses steps of a state memory as its spec asks (PCC, algorithm 1).

With episodes a full level is compressed before the next steps are.
"""

from dataclasses import replace
from functools import partial

from service.domain.state.compressing import Compression
from service.domain.state.spec import StateSpec
from service.domain.state.triggers import SizedStep, least_due
from service.domain.state.vectors import State, entry_changes
from service.domain.state.working_context import WorkingContext, is_due
from service.domain.values.work_items import WorkItem
from service.llm.offloading import beside
from service.usecases.memories.memory_method import (
    ClaimTransaction,
    MemoryChange,
    MemoryMethod,
    MemoryStep,
    StepNext,
    StepPart,
    StepWait,
)
from service.usecases.state.work import CompressionGroup, StateWork, idle_at, wake_position
from storage.engine.claims import Claim
from storage.engine.database import Transaction
from storage.log import chunks
from storage.memories.revisions import NewRevision
from storage.state import contexts, idle, vectors
from storage.state.contexts import ContextBounds

#: Chunks that one query of the log reads. Besides the steps of one compression a worker
#: keeps at most so many.
READ_CHUNKS = 64
#: Content, and metadata, of steps that are read to find out that nothing is due; with more
#: the memory is taken over first.
READ_BYTES = 1024 * 1024


class StateMethod(MemoryMethod[State, StateWork]):
    """Says what state memories need, in one worker process."""

    kind = StateSpec.kind
    claim = ClaimTransaction(name="claim.state", occasion="compress")

    async def stays_idle(self, item: WorkItem) -> bool:
        """Leaves a memory alone that has nothing to compress yet, without claiming it."""
        async with self._database.direct(item.tenant_id, name="step.peek") as tx:
            found = await idle.look(tx, item.session_key, item.item_id)
            if found is None:
                return True
            held, spec = found.held, StateSpec.of(found.held)
            waiting = found.head - held.applied_position
            is_flushed = waiting > 0 and held.flush_position > held.applied_position
            if is_flushed or found.levels.full_level(spec.episode_vectors) is not None:
                return False
            least = 1 if spec.idle_ms else least_due(spec)
            if waiting < least:
                wake = held.applied_position + least
                return await idle.leave(tx, held, found.head, wake_position=wake) is None
            if waiting >= spec.max_period:
                return False
            context = await self._context(tx, held)
            return context is not None and await _leave(tx, held, context) is None

    async def _context(self, tx: Transaction, held: Claim) -> WorkingContext | None:
        """Returns the steps of a memory and what is in use, when nothing is due; else None."""
        bounds = ContextBounds(
            chunks=READ_CHUNKS, content_bytes=READ_BYTES, metadata_bytes=READ_BYTES
        )
        stored = await contexts.read_newest(tx, (held.session_key, held.memory_id), bounds)
        if stored is None or stored.state is None or not stored.is_whole:
            return None
        steps = [SizedStep.of(logged) for logged in stored.recent]
        context = WorkingContext(state=stored.state, recent=steps)
        return None if is_due(StateSpec.of(held), context, now=stored.now) else context

    async def read(self, tx: Transaction, held: Claim) -> State:
        """Reads the vectors in use."""
        state = await vectors.read_state(tx, held.session_key, held.memory_id, held.revision)
        assert state is not None, "the cursor's foreign key keeps the revision"
        return state

    async def load(self, held: Claim, found: State) -> StateWork:
        """Adds the model; steps are read when they are needed."""
        model = self._tools.model(held)
        return StateWork(held=held, state=found, facts=self._tools.facts(model))

    async def next(self, work: StateWork) -> StepNext[StateWork]:
        """Compresses a full level, or the steps that are due, or leaves the memory."""
        level = work.full_level
        if level is not None:
            return self._compression(work, await self._episode(work, level))
        # What was read last is compressed just now: as a rule nothing has come since.
        is_read = work.held.committed_at is None and not work.steps
        while True:
            if not is_read:
                work, number = await self._next_due(work)
                if number is not None:
                    return self._compression(work, work.next_steps(number))
            left = await self._idle(work)
            if left is not None:
                return left
            is_read = False

    async def _episode(self, work: StateWork, level: int) -> CompressionGroup:
        held, run = work.held, work.state.levels.run(level)
        async with self._database.transaction(work.held.tenant_id, name="step.episode") as tx:
            found = await vectors.read_vectors(tx, held.session_key, held.memory_id, run)
        return work.next_episode(level, found)

    async def _next_due(self, work: StateWork) -> tuple[StateWork, int | None]:
        """Returns how many steps are to be compressed, and the steps read up to there at least.

        A flush and the clock say so only of a log that was read to its head just now.
        """
        while True:
            # It looks for new words in the steps, which may be long.
            number = await beside(work.due_anyway)
            if number is not None:
                return work, number
            async with self._database.transaction(work.held.tenant_id, name="step") as tx:
                found = await chunks.read(
                    tx, work.held.session_key, work.read_position, READ_CHUNKS
                )
                now = await idle.clock(tx) if work.spec.idle_ms else None
            steps = (*work.steps, *(SizedStep.of(logged) for logged in found))
            work = replace(work, steps=steps)
            if len(found) < READ_CHUNKS:
                number = await beside(work.due_anyway)
                return work, work.due_at_head(now) if number is None else number

    def _compression(self, work: StateWork, group: CompressionGroup) -> MemoryStep[StateWork]:
        return MemoryStep(
            work=work,
            part=StepPart(
                after_position=group.from_position,
                to_position=group.to_position,
                skip=partial(_skipped, work, group),
            ),
            level=group.level,
            occasion=group.occasion,
            flow=partial(
                group.flow,
                work.spec,
                self._tools.cut,
                **work.facts.terms(self._tools.marker_key),
            ),
            made=partial(_compressed, work, group),
        )

    async def _idle(self, work: StateWork) -> StepWait | None:
        """Leaves a memory whose steps stay recent; returns None when more have arrived."""
        async with self._database.direct(work.held.tenant_id, name="step.idle_state") as tx:
            head = await _leave(tx, work.held, work.context)
        if head is None:
            return StepWait()
        # Else it was flushed, changed or taken over since this worker claimed it.
        return None if head > work.read_position else StepWait(seconds=0.0)


def _compressed(
    work: StateWork, group: CompressionGroup, done: Compression
) -> MemoryChange[StateWork]:
    vector = group.vector(done)
    state = work.state_after(group, vector)
    new = NewRevision(
        kind=group.kind(done.made),
        to_position=state.applied_position,
        digest=state.digest,
        entries=entry_changes(work.state, state),
    )

    async def write(tx: Transaction, new: NewRevision) -> bool:
        return await vectors.commit(tx, work.held, new, state.levels, vector, has_work=True)

    return MemoryChange(new=new, work=work.moved(new, state), write=write, name="commit.state")


def _skipped(work: StateWork, group: CompressionGroup, _: str) -> MemoryChange[StateWork]:
    return _compressed(work, group, group.skipped(work.spec, work.facts.count))


async def _leave(tx: Transaction, held: Claim, context: WorkingContext) -> int | None:
    return await idle.leave(
        tx,
        held,
        context.head,
        wake_position=wake_position(StateSpec.of(held), context),
        ready_at=idle_at(StateSpec.of(held), context),
    )
