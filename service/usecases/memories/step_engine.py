"""Step engine: advances claimed memories step by step, whatever their kind.

A step reads, asks and writes: what it needs is read and the transaction is closed; its flow
is driven, each reply durable before it is used; one transaction writes the revision and moves
the cursor. What makes that exactly-once is in the keys of `storage.tables.revision`. The epoch
of the claim only saves the work of a worker that lost its memory to another one.
"""

import asyncio
from collections.abc import Awaitable
from dataclasses import replace
from typing import Any, Generic

import structlog
from opentelemetry.trace import Span

from service.domain.calls.ledger import Gone
from service.domain.values.errors import BudgetExhausted
from service.domain.values.memory_specs import OnFailure
from service.domain.values.work_items import WorkItem
from service.llm.offloading import beside
from service.telemetry.names import Attribute
from service.usecases.memories import step_traces
from service.usecases.memories.memory_method import (
    MemoryChange,
    MemoryMethod,
    MemoryStep,
    PartFailed,
    StepBatch,
    StepPart,
    StepWait,
    Turn,
    WorkT,
)
from service.usecases.memories.metrics import FENCED, STEPS, timed
from service.usecases.memories.step_failures import StepFailures, cause_of, trace
from service.usecases.memories.step_tools import StepTools
from service.usecases.spend import budgets
from storage.calls import calls, intents
from storage.engine.claims import Claim, Fenced
from storage.engine.database import Transaction
from storage.engine.errors import StorageError
from storage.engine.tasks import begin_part
from storage.memories import revisions, stalls
from storage.memories.revisions import NewRevision

_log = structlog.get_logger("palimpsest.step")

#: When a worker looks again at a memory whose sources are being changed.
CHANGE_SECONDS = 1.0


class StepEngine(Generic[WorkT]):
    """Advances memories of one kind in one worker process."""

    def __init__(self, method: MemoryMethod[Any, WorkT], tools: StepTools) -> None:
        self._method = method
        self._tools = tools
        self._database = tools.database
        self._failures = StepFailures(tools)

    @property
    def kind(self) -> str:
        """The kind of memories that it advances."""
        return self._method.kind

    async def drain(self, item: WorkItem, *, stop: asyncio.Event | None = None) -> float | None:
        """Advances a memory until it has nothing to do; returns None then.

        Else the seconds after which a worker looks again: 0 when its turn is up
        (`drain_seconds`, or `stop` is set), so that others get theirs; more when the next step
        waits for more chunks. None also when a step failed and waits for its next try, or
        another worker has taken the memory over. Raises StorageError when the database cannot
        be reached.
        """
        until = asyncio.get_running_loop().time() + self._tools.config.drain_seconds
        turn = Turn(until=until, stop=stop)
        if await self._method.stays_idle(item):
            return None
        after = await self._claim(item)
        while not isinstance(after, StepWait):
            work = after
            try:
                after = await self._advance(work, turn)
            except Fenced:
                return await self._lost(work.held)
        return after.seconds

    async def _claim(self, item: WorkItem) -> WorkT | StepWait:
        claim = self._method.claim
        # Lazily: before anything comes of the claim, an intent or a revision is on disk, and
        # then it is too.
        async with self._database.transaction(item.tenant_id, lazily=True, name=claim.name) as tx:
            held = await revisions.claim(tx, item.session_key, item.item_id, self.kind)
            if held is None:
                return StepWait()
            if held.source_changes:
                # What it has of a quarantined source is undone before any prompt shows it.
                return StepWait(seconds=CHANGE_SECONDS)
            if held.has_dead_intents:
                await intents.forget(tx, held.session_key)
            found = await self._method.read(tx, held)
            if claim.occasion:
                paid = await calls.find_occasion(
                    tx, held.session_key, held.memory_id, f"{claim.occasion}:{held.revision + 1}:"
                )
                if paid is not None:
                    held = replace(held, paid_position=int(paid.rpartition(":")[2]))
        return await self._method.load(held, found)

    async def _advance(self, work: WorkT, turn: Turn) -> WorkT | StepWait:
        """Does what the memory needs next; returns the work after it."""
        todo = await self._method.next(work)
        if isinstance(todo, StepWait):
            return todo
        if isinstance(todo, StepBatch):
            return await self._guarded(todo, todo.run(turn))
        if turn.is_over:
            return StepWait(seconds=0.0)
        if isinstance(todo, MemoryChange):
            if todo.new.to_position > work.held.applied_position:
                begin_part(turn.stop)
            return await self._commit(work.held, todo)
        # A change that reads no chunks is no part: a memory that is folded in each of its turns
        # would make no progress.
        begin_part(turn.stop)
        held, part = todo.work.held, todo.part
        async with step_traces.step(self._database, held, part, level=todo.level) as span:
            return await self._guarded(todo, self._run(todo), span)

    async def _run(self, step: MemoryStep[WorkT]) -> WorkT | StepWait:
        work = step.work
        with timed(self.kind):
            flow = await beside(step.flow)
            result = await self._tools.ask(flow, work.held, step.occasion)
            made = await beside(step.made, result)
            return await self._commit(work.held, made) if isinstance(made, MemoryChange) else made

    async def _guarded(
        self,
        doing: MemoryStep[WorkT] | StepBatch[WorkT],
        attempt: Awaitable[WorkT | StepWait],
        span: Span | None = None,
    ) -> WorkT | StepWait:
        """Lets no failure of a step pass, but the loss of the memory or of the database."""
        try:
            return await attempt
        except (Fenced, StorageError):
            raise
        except PartFailed as failed:
            part, error = failed.part, failed.error
        except Exception as failure:
            # A poisoned chunk must stall its memory, not kill its worker.
            part, error = doing.part, failure
        if isinstance(error, Gone):
            raise Fenced from error
        if isinstance(error, BudgetExhausted):
            return await self._hold(doing.work.held, error)
        if span is not None:
            trace(span, error)
        return await self._failed(doing.work.held, part, error)

    async def _commit(self, held: Claim, change: MemoryChange[WorkT]) -> WorkT | StepWait:
        # Directly, in one round trip: appends wait for a step that is about to leave.
        opened = self._database.direct if change.is_direct else self._database.transaction
        with step_traces.commit(held, change.new) as new:
            async with opened(held.tenant_id, name=change.name) as tx:
                has_work = await change.write(tx, new)
        STEPS.add(1, {Attribute.KIND: change.new.kind})
        return change.work if has_work else StepWait()

    async def _hold(self, held: Claim, error: BudgetExhausted) -> StepWait:
        seconds = await budgets.hold(self._database, held, error)
        _log.info("memory is held", memory=str(held.memory_id), cause=error.message)
        return StepWait(seconds=seconds)

    async def _failed(
        self, held: Claim, part: StepPart[WorkT], error: Exception
    ) -> WorkT | StepWait:
        if await self._failures.back_off(held, error):
            return StepWait()
        before = replace(held, applied_position=part.after_position)
        if part.skip is None or held.spec.on_failure is not OnFailure.SKIP:
            await self._failures.stall(before, part.to_position, error)
            return StepWait()
        cause = cause_of(error)
        skipped = part.skip(cause)
        if not isinstance(skipped, MemoryChange):
            return skipped

        async def write(tx: Transaction, new: NewRevision) -> bool:
            has_work = await skipped.write(tx, new)
            await stalls.add_dead_letter(
                tx, before, to_position=part.to_position, cause=cause, resolution="skipped"
            )
            return has_work

        return await self._commit(held, replace(skipped, write=write, is_direct=False))

    async def _lost(self, held: Claim) -> float | None:
        """Returns what `drain` does when a result was thrown away."""
        FENCED.add(1)
        wait = await self._method.lost(held)
        if wait.seconds is None:
            _log.info("memory was taken over by another worker", memory=str(held.memory_id))
        return wait.seconds
