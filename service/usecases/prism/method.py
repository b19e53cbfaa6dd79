"""PRISM method: advances a memory to the head of its log, step by step.

A step reads, thinks and writes: chunks and state are read and the transaction is
closed; the flow is driven, each reply durable before it is used; one transaction
writes the revision and moves the cursor. What makes it exactly-once is in the keys
of `storage.tables.revision`; the epoch only saves the work of a worker that lost
its memory to another one.
"""

import asyncio
import hashlib
from collections.abc import Callable, Coroutine, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import structlog

from service.domain.calls.ledger import CallScope, Gone
from service.domain.log.chunks import ChunkKind, LoggedChunk
from service.domain.prism import asking as prism
from service.domain.prism import losses, pacing
from service.domain.prism.amendments import Revision
from service.domain.prism.folding import FoldState
from service.domain.prism.memory import PrismMemory
from service.domain.prism.pacing import Need, SizedChunk, StepBounds, Wish
from service.domain.prism.rules import Rules
from service.domain.prism.spec import PrismSpec, StepScope
from service.domain.prompting.flows import Flow
from service.domain.spend.prices import ModelPrices
from service.domain.values.errors import BudgetExhausted
from service.domain.values.memory_kinds import MemoryKind, OnFailure
from service.domain.values.work_items import WorkItem
from service.llm.gateway.driver import drive
from service.llm.gateway.gateway import Gateway
from service.llm.offloading import beside
from service.llm.providers.facts import ModelFacts
from service.settings.config import Config
from service.telemetry.names import Attribute
from service.usecases.memories import step_traces
from service.usecases.memories.metrics import FENCED, STEPS, timed
from service.usecases.memories.step_failures import StepFailures, asked_anew, cause_of, trace
from service.usecases.prism.work import MAX_STEP_CHUNKS, PrismWork, next_group, no_room
from service.usecases.spend import budgets
from storage.calls import calls, intents
from storage.engine.claims import Fenced
from storage.engine.database import Database
from storage.engine.errors import StorageError
from storage.log import chunks, sessions
from storage.memories import revisions, stalls
from storage.memories.revisions import NewRevision
from storage.prism import states
from storage.prism.states import PrismRows

_log = structlog.get_logger("palimpsest.revise")

#: Chunks that one look at the log brings.
READ_CHUNKS = 64
#: A step that waits for more chunks looks after them this often within its linger, but
#: not sooner than the second figure, in seconds.
LINGER_LOOKS = 4
MIN_LINGER_SECONDS = 0.2


class PrismMethod:
    """Advances PRISM memories in one worker process."""

    def __init__(
        self,
        database: Database,
        gateway: Gateway,
        facts: Callable[[str], ModelFacts],
        prices: Callable[[str], ModelPrices],
        marker_key: bytes,
        config: Config,
    ) -> None:
        self._database = database
        self._gateway = gateway
        self._facts = facts
        self._prices = prices
        self._marker_key = marker_key
        self._config = config
        self._failures = StepFailures(database, config)

    async def drain(self, item: WorkItem, *, stop: asyncio.Event | None = None) -> float | None:
        """Advances the memory until it is at the head; None when there is no more to do.

        Else the seconds after which somebody should come back: at once when its time is
        up (`drain_seconds`), so that others get their turn, and when `stop` is set; later
        when the next step waits for more chunks. None also when a step failed and waits
        for its next try, or another worker has taken the memory over. Raises
        StorageError when the database cannot be reached.
        """
        until = asyncio.get_running_loop().time() + self._config.drain_seconds
        work: PrismWork | float | None = await self._take(item)
        while isinstance(work, PrismWork):
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

    async def _take(self, item: WorkItem) -> PrismWork | None:
        # Lazily: before anything comes of the claim, an intent or a revision is on disk, and
        # then it is too.
        async with self._database.transaction(
            item.tenant_id, lazily=True, name="claim.prism"
        ) as tx:
            held = await revisions.claim(tx, item.session_key, item.item_id)
            if held is None:
                return None
            if held.has_dead_intents:
                await intents.forget(tx, held.session_key)
            rows = await states.read_for_prompts(
                tx, held.session_key, held.memory_id, held.revision, held.prism.encoding
            )
            paid = await calls.find_occasion(
                tx, held.session_key, held.memory_id, f"revise:{held.revision + 1}:"
            )
            found = await chunks.read(tx, held.session_key, held.applied_position, READ_CHUNKS)
        assert rows is not None, "the cursor's foreign key holds the revision"
        spec = held.prism
        model = spec.model or self._config.model
        facts = self._facts(model)
        # A large memory takes long; leases are renewed meanwhile.
        memory, task_tokens = await beside(self._loaded, spec, rows, facts)
        pending = await beside(_sized, found, facts.count)
        return PrismWork(
            tenant_id=item.tenant_id,
            held=held,
            memory=memory,
            model=model,
            facts=facts,
            prices=self._prices(model),
            bounds=StepBounds.of(
                facts.window_tokens, task_tokens, self._config.limits.max_memory_bytes
            ),
            fold_state=FoldState.from_json(held.fold_state, held.revision),
            pending=tuple(pending),
            has_all=len(found) < READ_CHUNKS,
            paid_position=None if paid is None else int(paid.rpartition(":")[2]),
        )

    def _loaded(
        self, spec: PrismSpec, rows: PrismRows, facts: ModelFacts
    ) -> tuple[PrismMemory, int]:
        """The memory, and the tokens of the task that stands before it in prompts."""
        focused = spec.steps is StepScope.FOCUSED
        task = prism.task_text(spec, self._rules(spec), is_focused=focused)
        memory = PrismMemory.load(
            spec.schema(),
            base_json=rows.base,
            amendments=rows.amendments,
            encoding=spec.encoding,
            count=facts.count,
        )
        return memory, facts.count(task)

    async def _advance(self, work: PrismWork) -> PrismWork | float | None:
        """One committed change; else what `drain` returns."""
        wish = Wish(
            applied_position=work.held.applied_position,
            consolidate_position=work.held.consolidate_position,
            consolidated_tokens=work.held.consolidated_tokens,
            crowded=work.crowded,
        )
        # The first to count a memory that has changed.
        need = await beside(pacing.next_need, work.spec, work.memory, work.bounds, wish)
        if need is Need.FOLD:
            return await self._fold(work)
        if need is Need.CONSOLIDATION:
            return await self._guarded(work, work.held.applied_position, self._consolidate(work))
        work = await self._read(work)
        if not work.pending:
            return await self._idle(work)
        group, full = next_group(work)
        if not full:
            seconds = await self._linger(work, group)
            if seconds is not None:
                return seconds
        if need is Need.ROOM:
            return await self._failed(work, group[-1].position, no_room(work))
        # A prompt that was paid for was not folded for, whatever prices say by now.
        if work.paid_position != group[-1].position and work.folds_first(group):
            return await self._fold(work, group)
        return await self._guarded(work, group[-1].position, self._step(work, group))

    async def _guarded(
        self, work: PrismWork, to_position: int, attempt: Coroutine[Any, Any, PrismWork | None]
    ) -> PrismWork | float | None:
        held = work.held
        with closing(attempt):
            async with step_traces.step(
                self._database, work.tenant_id, held, after=held.applied_position, upto=to_position
            ) as span:
                try:
                    with timed(MemoryKind.PRISM):
                        return await attempt
                except (Fenced, StorageError):
                    raise
                except Gone as gone:
                    raise Fenced from gone
                except BudgetExhausted as error:
                    return await self._hold(work, error)
                except Exception as error:
                    # A poisoned chunk must stall its memory, not kill its worker.
                    trace(span, error)
                    return await self._failed(work, to_position, error)

    async def _read(self, work: PrismWork) -> PrismWork:
        """Returns the work with enough chunks for a step, or all there are."""
        pending = list(work.pending)
        tokens = sum(one.tokens for one in pending)
        while len(pending) < MAX_STEP_CHUNKS and not work.has_all:
            reached = pending[-1].position if pending else work.held.applied_position
            if tokens >= work.spec.chunk_tokens and reached >= (work.paid_position or 0):
                break
            async with self._database.transaction(work.tenant_id, name="step") as tx:
                found = await chunks.read(tx, work.held.session_key, reached, READ_CHUNKS)
            sized = await beside(_sized, found, work.facts.count)
            tokens += sum(one.tokens for one in sized)
            pending += sized
            if len(found) < READ_CHUNKS:
                break
        return replace(work, pending=tuple(pending))

    async def _linger(self, work: PrismWork, group: Sequence[SizedChunk]) -> float | None:
        """Delays a step that could still grow; returns the seconds until the next look."""
        held = work.held
        linger = work.spec.linger_seconds(
            only_messages=all(one.logged.chunk.kind is ChunkKind.MESSAGE for one in group),
            service_seconds=self._config.message_linger_seconds,
        )
        # A flush also ends the linger of what comes with the flushed chunks.
        if not linger or group[0].position <= held.flush_position or held.attempts:
            return None
        if work.paid_position is not None:
            return None
        look = min(max(linger / LINGER_LOOKS, MIN_LINGER_SECONDS), linger)
        async with self._database.transaction(work.tenant_id, name="step") as tx:
            waits = await revisions.linger(
                tx, held, since=group[0].logged.created_at, linger_seconds=linger, look_seconds=look
            )
        return look if waits else None

    async def _step(self, work: PrismWork, group: Sequence[SizedChunk]) -> PrismWork | None:
        scope = self._scope(work, f"revise:{work.held.revision + 1}:{group[-1].position}")
        revision = await self._drive(work, await beside(self._flow, work, group), scope)
        made = await beside(self._stepped, work, group, revision)
        if made is None:
            # Rejections are for good. The text is read again when there is more room.
            return replace(work, crowded=True)
        may_idle = len(group) == len(work.pending)
        has_work = await self._commit(work, made.new, may_idle=may_idle, name="commit.step")
        return work.moved(made.new, made.memory) if has_work else None

    def _flow(self, work: PrismWork, group: Sequence[SizedChunk]) -> Flow[Revision]:
        limit = pacing.piece_tokens(work.spec, work.memory, work.bounds)
        return prism.revise_in_parts(
            work.spec,
            work.memory,
            pacing.parts(group, limit, work.facts.count),
            number=work.held.revision + 1,
            marker_key=self._marker_key,
            rules=self._rules(work.spec),
            output_tokens=work.bounds.step_output_tokens,
            most_tokens=pacing.most_step_tokens(work.spec, work.memory, work.bounds, group, limit),
            focus=lambda memory: pacing.focus_tokens(work.spec, memory, work.bounds),
        )

    def _stepped(
        self, work: PrismWork, group: Sequence[SizedChunk], revision: Revision
    ) -> "_RevisedMemory | None":
        """What a step makes of a memory; None: it is to be consolidated first."""
        consolidated = work.held.consolidated_tokens
        if revision.lacked_room and pacing.may_make_room(work.memory, consolidated):
            return None
        memory = work.memory.apply(work.held.revision + 1, revision.amendments)
        new = NewRevision(
            kind="step",
            to_position=group[-1].position,
            digest=_digest(memory),
            amendments=revision.amendments,
            rejections=revision.rejections,
            value=memory.value_json if revision.amendments else None,
            fold_state=work.counted(prompted=not work.is_focused),
            losses=losses.after_step(
                work.held.losses,
                revision,
                memory.value,
                self._rules(work.spec),
                first_position=work.held.applied_position + 1,
            ),
        )
        return _RevisedMemory(memory, new)

    async def _consolidate(self, work: PrismWork) -> PrismWork:
        held = work.held
        scope = self._scope(work, f"consolidate:{held.revision + 1}:{held.applied_position}")
        flow = await beside(self._consolidation, work)
        revision = await self._drive(work, flow, scope)
        made = await beside(self._consolidated, work, revision)
        await self._commit(work, made.new, name="commit.consolidation")
        return work.moved(made.new, made.memory)

    def _consolidation(self, work: PrismWork) -> Flow[Revision]:
        return prism.consolidate(
            work.spec,
            work.memory,
            marker_key=self._marker_key,
            rules=self._rules(work.spec),
            budget_tokens=pacing.goal_tokens(work.spec, work.memory, work.bounds),
            output_tokens=work.bounds.consolidation_output_tokens,
            most_tokens=pacing.most_consolidation_tokens(work.memory, work.bounds),
            room_tokens=pacing.consolidation_tokens(work.bounds),
        )

    def _consolidated(self, work: PrismWork, revision: Revision) -> "_RevisedMemory":
        held = work.held
        memory = work.memory.apply(held.revision + 1, revision.amendments).fold()
        changed = memory.value_json if revision.amendments else None
        new = NewRevision(
            kind="consolidation",
            to_position=held.applied_position,
            digest=_digest(memory),
            amendments=revision.amendments,
            rejections=revision.rejections,
            value=changed,
            # Prompts have no line for what was removed.
            base=memory.value_json,
            consolidated_tokens=memory.live_tokens,
            losses=losses.after_change(held.losses, memory.value, self._rules(work.spec)),
        )
        return _RevisedMemory(memory, new)

    async def _drive(self, work: PrismWork, flow: Flow[Revision], scope: CallScope) -> Revision:
        return await drive(
            flow,
            lambda ask: self._gateway.call(
                asked_anew(ask, work.held), model=work.model, scope=scope
            ),
        )

    async def _fold(self, work: PrismWork, group: Sequence[SizedChunk] = ()) -> PrismWork:
        made = await beside(self._folded, work, group)
        await self._commit(work, made.new, name="commit.fold")
        return work.moved(made.new, made.memory)

    def _folded(self, work: PrismWork, group: Sequence[SizedChunk]) -> "_RevisedMemory":
        memory, counted = work.folded(group)
        moved = memory.value_json != work.memory.value_json
        new = NewRevision(
            kind="fold",
            to_position=work.held.applied_position,
            digest=_digest(memory),
            # The same with its keys in another order.
            value=memory.value_json if moved else None,
            base=memory.base_json,
            fold_state=counted.to_json() if work.is_adaptive else None,
        )
        return _RevisedMemory(memory, new)

    async def _commit(
        self, work: PrismWork, new: NewRevision, *, may_idle: bool = False, name: str
    ) -> bool:
        """Writes a revision. With `may_idle` it looks whether that was the last chunk.

        Returns whether there is more to do.
        """
        with step_traces.commit(work.held, new) as traced:
            # In one round trip: appends to the session wait for whoever is about to leave.
            async with self._database.direct(work.tenant_id, name=name) as tx:
                has_work = await revisions.commit_revision(
                    tx, work.held, traced, has_work=True, may_idle=may_idle
                )
        STEPS.add(1, {Attribute.KIND: new.kind})
        return has_work

    async def _idle(self, work: PrismWork) -> PrismWork | float | None:
        """Leaves a memory that is at the head, unless something came just now."""
        async with self._database.transaction(work.tenant_id, name="step.idle_prism") as tx:
            head = await sessions.locked_head(tx, work.held.session_key)
            if head is None:
                raise Fenced
            if head > work.held.applied_position:
                return replace(work, has_all=False)
            is_idle = await revisions.clear_work(tx, work.held)
        # A consolidation was asked for since this worker took the memory.
        return None if is_idle else 0.0

    async def _hold(self, work: PrismWork, error: BudgetExhausted) -> float | None:
        seconds = await budgets.hold(self._database, work.held, self._scope(work, ""), error)
        _log.info("memory is held", memory=str(work.held.memory_id), cause=error.message)
        return seconds

    async def _failed(
        self, work: PrismWork, to_position: int, error: Exception
    ) -> PrismWork | None:
        if await self._failures.back_off(work.tenant_id, work.held, error):
            return None
        if work.spec.on_failure is OnFailure.SKIP:
            return await self._skip(work, to_position, cause_of(error))
        await self._failures.stall(work.tenant_id, work.held, to_position, error)
        return None

    async def _skip(self, work: PrismWork, to_position: int, cause: str) -> PrismWork:
        memory = work.memory
        reads = to_position > work.held.applied_position
        new = NewRevision(
            # A consolidation that failed for good changes nothing, and is not tried again
            # before the memory has grown.
            kind="skip" if reads else "consolidation",
            to_position=to_position,
            digest=_digest(memory),
            consolidated_tokens=None if reads else memory.live_tokens,
            fold_state=work.counted(prompted=False),
        )
        with step_traces.commit(work.held, new) as traced:
            async with self._database.transaction(work.tenant_id, name="step") as tx:
                await revisions.commit_revision(tx, work.held, traced, has_work=True)
                await stalls.add_dead_letter(
                    tx, work.held, to_position=to_position, cause=cause, resolution="skipped"
                )
        STEPS.add(1, {Attribute.KIND: new.kind})
        return work.moved(new, memory)

    def _scope(self, work: PrismWork, occasion: str) -> CallScope:
        return CallScope(
            tenant_id=work.tenant_id,
            session_key=work.held.session_key,
            memory_id=work.held.memory_id,
            occasion=occasion,
            incarnation=work.held.incarnation,
        )

    def _rules(self, spec: PrismSpec) -> Rules:
        return spec.rules(self._config.limits.max_memory_bytes)


@dataclass(frozen=True, slots=True)
class _RevisedMemory:
    """What a revision makes of a memory, and how it is stored."""

    memory: PrismMemory
    new: NewRevision


def _sized(found: Sequence[LoggedChunk], count: Callable[[str], int]) -> Sequence[SizedChunk]:
    return [SizedChunk.of(logged, count) for logged in found]


def _digest(memory: PrismMemory) -> bytes:
    return hashlib.sha256(memory.value_json.encode()).digest()
