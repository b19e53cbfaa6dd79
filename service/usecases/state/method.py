"""State method: compresses steps of a state memory as its spec asks (PCC, algorithm 1).

Steps and vectors are read and the transaction is closed; the flow is driven, each reply
durable before it is used; one transaction writes the revision with its vector and moves
the cursor. With episodes a full level is compressed before the next steps are. What makes
it exactly-once is in the keys of `storage.tables.revision`; the epoch only saves the work
of a worker that lost its memory to another one.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace

import structlog

from service.domain.calls.ledger import Gone
from service.domain.prompting.splitting import Cutter
from service.domain.state.compressing import Compression
from service.domain.state.triggers import SizedStep, least_due
from service.domain.state.working_context import WorkingContext, is_due
from service.domain.values.errors import BudgetExhausted
from service.domain.values.memory_kinds import MemoryKind, OnFailure
from service.domain.values.work_items import WorkItem
from service.llm.gateway.driver import drive
from service.llm.gateway.gateway import Gateway
from service.llm.offloading import beside
from service.llm.providers.facts import ModelFacts
from service.llm.splitter import first_piece
from service.settings.config import Config
from service.telemetry.names import Attribute
from service.usecases.memories import step_traces
from service.usecases.memories.metrics import FENCED, STEPS, timed
from service.usecases.memories.step_failures import StepFailures, asked_anew, cause_of, trace
from service.usecases.spend import budgets
from service.usecases.state.work import CompressionGroup, StateWork, idle_at, wake_position
from storage.calls import calls, intents
from storage.engine.claims import Claim, Fenced
from storage.engine.database import Database, Transaction
from storage.engine.errors import StorageError
from storage.log import chunks
from storage.memories import revisions, stalls
from storage.memories.revisions import NewRevision
from storage.state import contexts, idle, vectors
from storage.state.contexts import ContextBounds

_log = structlog.get_logger("palimpsest.compress")

#: Chunks that one look at the log brings. Besides the steps of one compression a worker
#: holds at most so many.
READ_CHUNKS = 64
#: Content, and metadata, of steps that are read to find out that nothing is due; with more
#: the memory is taken over first.
READ_BYTES = 1024 * 1024


class StateMethod:
    """Advances state memories in one worker process."""

    def __init__(
        self,
        database: Database,
        gateway: Gateway,
        facts: Callable[[str], ModelFacts],
        marker_key: bytes,
        config: Config,
        cut: Cutter = first_piece,
    ) -> None:
        self._database = database
        self._gateway = gateway
        self._facts = facts
        self._marker_key = marker_key
        self._config = config
        self._cut = cut
        self._failures = StepFailures(database, config)

    async def drain(self, item: WorkItem, *, stop: asyncio.Event | None = None) -> float | None:
        """Compresses what is due; None when there is no more to do, though steps are recent.

        Else the seconds after which somebody should come back: at once when its time is up
        (`drain_seconds`), when `stop` is set, and when it was flushed since. None also when a
        compression failed and waits for its next try, or another worker has taken the memory
        over. Raises StorageError when the database cannot be reached.
        """
        until = asyncio.get_running_loop().time() + self._config.drain_seconds
        if await self._stays_idle(item):
            return None
        work: StateWork | float | None = await self._take(item)
        while isinstance(work, StateWork):
            late = asyncio.get_running_loop().time() > until
            if late or (stop is not None and stop.is_set()):
                return 0.0
            try:
                work = await self._advance(work)
            except Fenced:
                FENCED.add(1)
                _log.info("memory is in other hands", memory=str(item.item_id))
                return None
        return work

    async def _stays_idle(self, item: WorkItem) -> bool:
        """Leaves a memory alone that has nothing to compress yet, without taking it over."""
        async with self._database.direct(item.tenant_id, name="step.peek") as tx:
            found = await idle.look(tx, item.session_key, item.item_id)
            if found is None:
                return True
            held, spec = found.held, found.held.state
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
        """The steps of a memory and what is in use, when nothing is due; else None."""
        bounds = ContextBounds(
            chunks=READ_CHUNKS, content_bytes=READ_BYTES, metadata_bytes=READ_BYTES
        )
        stored = await contexts.read_newest(tx, (held.session_key, held.memory_id), bounds)
        if stored is None or stored.state is None or not stored.is_whole:
            return None
        steps = [SizedStep.of(logged) for logged in stored.recent]
        context = WorkingContext(state=stored.state, recent=steps)
        return None if is_due(held.state, context, now=stored.now) else context

    async def _take(self, item: WorkItem) -> StateWork | None:
        async with self._database.transaction(item.tenant_id, name="claim.state") as tx:
            held = await revisions.claim(tx, item.session_key, item.item_id, MemoryKind.STATE)
            if held is None:
                return None
            if held.has_dead_intents:
                await intents.forget(tx, held.session_key)
            state = await vectors.read_state(tx, held.session_key, held.memory_id, held.revision)
            paid = await calls.find_occasion(
                tx, held.session_key, held.memory_id, f"compress:{held.revision + 1}:"
            )
        assert state is not None, "the cursor's foreign key holds the revision"
        model = held.state.model or self._config.model
        return StateWork(
            tenant_id=item.tenant_id,
            held=held,
            state=state,
            model=model,
            facts=self._facts(model),
            paid_position=None if paid is None else int(paid.rpartition(":")[2]),
        )

    async def _advance(self, work: StateWork) -> StateWork | float | None:
        """One committed revision; else what `drain` returns."""
        level = work.full_level
        if level is not None:
            return await self._guarded(work, await self._episode(work, level))
        work, number = await self._next_due(work)
        if number is None:
            return await self._idle(work)
        return await self._guarded(work, work.next_steps(number))

    async def _episode(self, work: StateWork, level: int) -> CompressionGroup:
        held, run = work.held, work.state.levels.run(level)
        async with self._database.transaction(work.tenant_id, name="step.episode") as tx:
            found = await vectors.read_vectors(tx, held.session_key, held.memory_id, run)
        return work.next_episode(level, found)

    async def _next_due(self, work: StateWork) -> tuple[StateWork, int | None]:
        """How many of the steps are to be compressed, and the steps read up to there at least.

        A flush and the clock say so only of a log that was read to its head just now.
        """
        while True:
            # It looks for new words in the steps, which may be long.
            number = await beside(work.due_anyway)
            if number is not None:
                return work, number
            async with self._database.transaction(work.tenant_id, name="step") as tx:
                found = await chunks.read(
                    tx, work.held.session_key, work.read_position, READ_CHUNKS
                )
                now = await idle.clock(tx) if work.spec.idle_ms else None
            steps = (*work.steps, *(SizedStep.of(logged) for logged in found))
            work = replace(work, steps=steps)
            if len(found) < READ_CHUNKS:
                number = await beside(work.due_anyway)
                return work, work.due_at_head(now) if number is None else number

    async def _guarded(self, work: StateWork, group: CompressionGroup) -> StateWork | float | None:
        async with step_traces.step(
            self._database,
            work.tenant_id,
            work.held,
            after=group.from_position,
            upto=group.to_position,
        ) as span:
            span.set_attribute(Attribute.LEVEL, group.level)
            try:
                with timed(MemoryKind.STATE):
                    return await self._compress(work, group)
            except (Fenced, StorageError):
                raise
            except Gone as gone:
                raise Fenced from gone
            except BudgetExhausted as error:
                return await self._hold(work, error)
            except Exception as error:
                # A poisoned chunk must stall its memory, not kill its worker.
                trace(span, error)
                return await self._failed(work, group, error)

    async def _compress(self, work: StateWork, group: CompressionGroup) -> StateWork | float | None:
        flow = group.flow(
            work.spec,
            marker_key=self._marker_key,
            count=work.facts.count,
            window_tokens=work.facts.window_tokens,
            cut=self._cut,
        )
        scope = work.scope(group.occasion)
        done = await drive(
            flow,
            lambda ask: self._gateway.call(
                asked_anew(ask, work.held), model=work.model, scope=scope
            ),
        )
        return await self._commit(work, group, done)

    async def _commit(
        self, work: StateWork, group: CompressionGroup, done: Compression, cause: str | None = None
    ) -> StateWork | float | None:
        """Writes a revision, with the `cause` why it was skipped; then as `_advance`."""
        held, vector = work.held, group.vector(done)
        moved = work.moved(work.state_behind(group, vector))
        new = NewRevision(
            kind=group.kind(done.made),
            to_position=moved.held.applied_position,
            digest=moved.state.digest,
        )
        with step_traces.commit(held, new) as traced:
            async with self._database.transaction(work.tenant_id, name="commit.state") as tx:
                await vectors.commit(tx, held, traced, moved.state.levels, vector, has_work=True)
                if cause is not None:
                    await stalls.add_dead_letter(
                        tx,
                        _before(held, group),
                        to_position=group.to_position,
                        cause=cause,
                        resolution="skipped",
                    )
        STEPS.add(1, {Attribute.KIND: new.kind})
        # What was read last is compressed: as a rule nothing has come since.
        return moved if moved.steps or moved.full_level else await self._idle(moved)

    async def _idle(self, work: StateWork) -> StateWork | float | None:
        """Leaves a memory whose steps stay recent, unless more came just now."""
        async with self._database.direct(work.tenant_id, name="step.idle_state") as tx:
            head = await _leave(tx, work.held, work.context)
        if head is None:
            return None
        # Else it was flushed or changed, or is in other hands, since this worker took it.
        return work if head > work.read_position else 0.0

    async def _hold(self, work: StateWork, error: BudgetExhausted) -> float | None:
        seconds = await budgets.hold(self._database, work.held, work.scope(""), error)
        _log.info("memory is held", memory=str(work.held.memory_id), cause=error.message)
        return seconds

    async def _failed(
        self, work: StateWork, group: CompressionGroup, error: Exception
    ) -> StateWork | float | None:
        held = work.held
        if await self._failures.back_off(work.tenant_id, held, error):
            return None
        if work.spec.on_failure is OnFailure.SKIP:
            done = group.skipped(work.spec, work.facts.count)
            return await self._commit(work, group, done, cause_of(error))
        before = _before(held, group)
        await self._failures.stall(work.tenant_id, before, group.to_position, error)
        return None


async def _leave(tx: Transaction, held: Claim, context: WorkingContext) -> int | None:
    return await idle.leave(
        tx,
        held,
        context.head,
        wake_position=wake_position(held.state, context),
        ready_at=idle_at(held.state, context),
    )


def _before(held: Claim, group: CompressionGroup) -> Claim:
    """The memory as a dead letter has it: what failed of an episode are its own positions."""
    return replace(held, applied_position=group.from_position)
