"""Revising: bringing a PRISM memory up to the head of its log, step by step.

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

from service.beside import beside
from service.config import Config
from service.domain.chunks import ChunkKind, LoggedChunk
from service.domain.errors import BudgetExhausted
from service.domain.fail_points import FailPoint, reach
from service.domain.flows import Flow
from service.domain.ledger import CallScope
from service.domain.memory_choices import OnFailure
from service.domain.prices import ModelPrices
from service.domain.prism import asking as prism
from service.domain.prism import losses, pacing
from service.domain.prism.amendments import Revision
from service.domain.prism.folding import FoldState
from service.domain.prism.memory import PrismMemory
from service.domain.prism.pacing import Bounds, Need, SizedChunk, Wish
from service.domain.prism.rules import Rules
from service.domain.prism.spec import PrismSpec, Steps
from service.domain.specs import MemoryKind
from service.domain.work import WorkItem
from service.llm.driver import drive
from service.llm.facts import ModelFacts
from service.llm.gateway import Gateway
from service.telemetry.names import Attribute
from service.usecases import budgets, step_traces
from service.usecases.failing import Failing, asked_anew, cause_of, trace
from service.usecases.held_prism import MAX_STEP_CHUNKS, HeldPrism, next_group, no_room
from service.usecases.step_meters import FENCED, STEPS, timed
from storage import calls, intents, log, prism_states, revisions, sessions, stalls
from storage.database import Database
from storage.errors import StorageError
from storage.prism_states import PrismRows
from storage.revisions import Fenced, NewRevision

_log = structlog.get_logger("palimpsest.revise")

#: Chunks that one look at the log brings.
READ_CHUNKS = 64
#: A step that waits for more chunks looks after them this often within its linger, but
#: not sooner than the second figure, in seconds.
LINGER_LOOKS = 4
MIN_LINGER_SECONDS = 0.2


class Reviser:
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
        self._failing = Failing(database, config)

    async def drain(self, item: WorkItem, *, stop: asyncio.Event | None = None) -> float | None:
        """Advances the memory until it is at the head; None when there is no more to do.

        Else the seconds after which somebody should come back: at once when its time is
        up (`drain_seconds`), so that others get their turn, and when `stop` is set; later
        when the next step waits for more chunks. None also when a step failed and waits
        for its next try, or another worker has taken the memory over. Raises
        StorageError when the database cannot be reached.
        """
        until = asyncio.get_running_loop().time() + self._config.drain_seconds
        state: HeldPrism | float | None = await self._take(item)
        while isinstance(state, HeldPrism):
            late = asyncio.get_running_loop().time() > until
            if late or (stop is not None and stop.is_set()):
                return 0.0
            try:
                state = await self._advance(state)
            except Fenced:
                FENCED.add(1)
                _log.info("memory is in other hands", memory=str(item.item_id))
                return None
        return state

    async def _take(self, item: WorkItem) -> HeldPrism | None:
        # Lazily: before anything comes of the claim, an intent or a revision is on disk, and
        # then it is too.
        async with self._database.transaction(item.tenant_id, lazily=True, name="claim") as tx:
            held = await revisions.claim(tx, item.session_key, item.item_id)
            if held is None:
                return None
            if held.has_dead_intents:
                await intents.forget(tx, held.session_key)
            rows = await prism_states.read_for_prompts(
                tx, held.session_key, held.memory_id, held.revision, held.prism.encoding
            )
            paid = await calls.find_occasion(
                tx, held.session_key, held.memory_id, f"revise:{held.revision + 1}:"
            )
            found = await log.read(tx, held.session_key, held.applied_position, READ_CHUNKS)
            reach(FailPoint.STEP_READ)
        reach(FailPoint.STEP_TAKEN)
        assert rows is not None, "the cursor's foreign key holds the revision"
        spec = held.prism
        model = spec.model or self._config.model
        facts = self._facts(model)
        # A large memory takes long; leases are renewed meanwhile.
        memory, task_tokens = await beside(self._loaded, spec, rows, facts)
        pending = await beside(_sized, found, facts.count)
        return HeldPrism(
            tenant_id=item.tenant_id,
            held=held,
            memory=memory,
            model=model,
            facts=facts,
            prices=self._prices(model),
            bounds=Bounds.of(
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
        focused = spec.steps is Steps.FOCUSED
        task = prism.task_text(spec, self._rules(spec), is_focused=focused)
        memory = PrismMemory.load(
            spec.schema(),
            base_json=rows.base,
            amendments=rows.amendments,
            encoding=spec.encoding,
            count=facts.count,
        )
        return memory, facts.count(task)

    async def _advance(self, state: HeldPrism) -> HeldPrism | float | None:
        """One committed change; else what `drain` returns."""
        wish = Wish(
            applied_position=state.held.applied_position,
            consolidate_position=state.held.consolidate_position,
            consolidated_tokens=state.held.consolidated_tokens,
            crowded=state.crowded,
        )
        # The first to count a memory that has changed.
        need = await beside(pacing.next_need, state.spec, state.memory, state.bounds, wish)
        if need is Need.FOLD:
            return await self._fold(state)
        if need is Need.CONSOLIDATION:
            return await self._guarded(state, state.held.applied_position, self._consolidate(state))
        state = await self._read(state)
        if not state.pending:
            return await self._rest(state)
        group, full = next_group(state)
        if not full:
            seconds = await self._linger(state, group)
            if seconds is not None:
                return seconds
        if need is Need.ROOM:
            return await self._failed(state, group[-1].position, no_room(state))
        # A prompt that was paid for was not folded for, whatever prices say by now.
        if state.paid_position != group[-1].position and state.folds_first(group):
            return await self._fold(state, group)
        return await self._guarded(state, group[-1].position, self._step(state, group))

    async def _guarded(
        self, state: HeldPrism, to_position: int, work: Coroutine[Any, Any, HeldPrism | None]
    ) -> HeldPrism | float | None:
        held = state.held
        with closing(work):
            async with step_traces.step(
                self._database, state.tenant_id, held, after=held.applied_position, upto=to_position
            ) as span:
                try:
                    with timed(MemoryKind.PRISM):
                        return await work
                except (Fenced, StorageError):
                    raise
                except BudgetExhausted as error:
                    return await self._hold(state, error)
                except Exception as error:
                    # A poisoned chunk must stall its memory, not kill its worker.
                    trace(span, error)
                    return await self._failed(state, to_position, error)

    async def _read(self, state: HeldPrism) -> HeldPrism:
        """The state with enough chunks for a step, or all there are."""
        pending = list(state.pending)
        tokens = sum(one.tokens for one in pending)
        while len(pending) < MAX_STEP_CHUNKS and not state.has_all:
            reached = pending[-1].position if pending else state.held.applied_position
            if tokens >= state.spec.chunk_tokens and reached >= (state.paid_position or 0):
                break
            async with self._database.transaction(state.tenant_id, name="step") as tx:
                found = await log.read(tx, state.held.session_key, reached, READ_CHUNKS)
            sized = await beside(_sized, found, state.facts.count)
            tokens += sum(one.tokens for one in sized)
            pending += sized
            if len(found) < READ_CHUNKS:
                break
        reach(FailPoint.STEP_CHUNKS_READ)
        return replace(state, pending=tuple(pending))

    async def _linger(self, state: HeldPrism, group: Sequence[SizedChunk]) -> float | None:
        """Puts a step off that could still grow; the seconds until the next look."""
        held = state.held
        linger = state.spec.linger_seconds(
            only_messages=all(one.logged.chunk.kind is ChunkKind.MESSAGE for one in group),
            service_seconds=self._config.message_linger_seconds,
        )
        # A flush lets go what comes with the flushed chunks as well.
        if not linger or group[0].position <= held.flush_position or held.attempts:
            return None
        if state.paid_position is not None:
            return None
        look = min(max(linger / LINGER_LOOKS, MIN_LINGER_SECONDS), linger)
        async with self._database.transaction(state.tenant_id, name="step") as tx:
            waits = await revisions.put_off(
                tx, held, since=group[0].logged.created_at, linger_seconds=linger, look_seconds=look
            )
        return look if waits else None

    async def _step(self, state: HeldPrism, group: Sequence[SizedChunk]) -> HeldPrism | None:
        scope = self._scope(state, f"revise:{state.held.revision + 1}:{group[-1].position}")
        revision = await self._drive(state, await beside(self._flow, state, group), scope)
        reach(FailPoint.STEP_THOUGHT)
        made = await beside(self._stepped, state, group, revision)
        if made is None:
            # Rejections are for good. The text is read again when there is more room.
            return replace(state, crowded=True)
        has_work = await self._commit(state, made.new, may_rest=len(group) == len(state.pending))
        return state.moved(made.new, made.memory) if has_work else None

    def _flow(self, state: HeldPrism, group: Sequence[SizedChunk]) -> Flow[Revision]:
        limit = pacing.piece_tokens(state.spec, state.memory, state.bounds)
        return prism.revise_in_parts(
            state.spec,
            state.memory,
            pacing.parts(group, limit, state.facts.count),
            number=state.held.revision + 1,
            marker_key=self._marker_key,
            rules=self._rules(state.spec),
            output_tokens=state.bounds.step_output_tokens,
            most_tokens=pacing.most_step_tokens(
                state.spec, state.memory, state.bounds, group, limit
            ),
            focus=lambda memory: pacing.focus_tokens(state.spec, memory, state.bounds),
        )

    def _stepped(
        self, state: HeldPrism, group: Sequence[SizedChunk], revision: Revision
    ) -> "_Made | None":
        """What a step makes of a memory; None: it is to be consolidated first."""
        consolidated = state.held.consolidated_tokens
        if revision.lacked_room and pacing.may_make_room(state.memory, consolidated):
            return None
        memory = state.memory.apply(state.held.revision + 1, revision.amendments)
        new = NewRevision(
            kind="step",
            to_position=group[-1].position,
            digest=_digest(memory),
            amendments=revision.amendments,
            rejections=revision.rejections,
            value=memory.value_json if revision.amendments else None,
            fold_state=state.counted(prompted=not state.is_focused),
            losses=losses.after_step(
                state.held.losses,
                revision,
                memory.value,
                self._rules(state.spec),
                first_position=state.held.applied_position + 1,
            ),
        )
        return _Made(memory, new)

    async def _consolidate(self, state: HeldPrism) -> HeldPrism:
        held = state.held
        scope = self._scope(state, f"consolidate:{held.revision + 1}:{held.applied_position}")
        flow = await beside(self._consolidation, state)
        revision = await self._drive(state, flow, scope)
        reach(FailPoint.CONSOLIDATION_THOUGHT)
        made = await beside(self._consolidated, state, revision)
        await self._commit(state, made.new, may_rest=False)
        reach(FailPoint.CONSOLIDATED)
        return state.moved(made.new, made.memory)

    def _consolidation(self, state: HeldPrism) -> Flow[Revision]:
        return prism.consolidate(
            state.spec,
            state.memory,
            marker_key=self._marker_key,
            rules=self._rules(state.spec),
            budget_tokens=pacing.goal_tokens(state.spec, state.memory, state.bounds),
            output_tokens=state.bounds.consolidation_output_tokens,
            most_tokens=pacing.most_consolidation_tokens(state.memory, state.bounds),
            room_tokens=pacing.consolidation_tokens(state.bounds),
        )

    def _consolidated(self, state: HeldPrism, revision: Revision) -> "_Made":
        held = state.held
        memory = state.memory.apply(held.revision + 1, revision.amendments).fold()
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
            losses=losses.after_change(held.losses, memory.value, self._rules(state.spec)),
        )
        return _Made(memory, new)

    async def _drive(self, state: HeldPrism, flow: Flow[Revision], scope: CallScope) -> Revision:
        return await drive(
            flow,
            lambda ask: self._gateway.call(
                asked_anew(ask, state.held), model=state.model, scope=scope
            ),
        )

    async def _fold(self, state: HeldPrism, group: Sequence[SizedChunk] = ()) -> HeldPrism:
        reach(FailPoint.FOLD_DUE)
        made = await beside(self._folded, state, group)
        await self._commit(state, made.new, may_rest=False)
        reach(FailPoint.FOLDED)
        return state.moved(made.new, made.memory)

    def _folded(self, state: HeldPrism, group: Sequence[SizedChunk]) -> "_Made":
        memory, counted = state.folded(group)
        moved = memory.value_json != state.memory.value_json
        new = NewRevision(
            kind="fold",
            to_position=state.held.applied_position,
            digest=_digest(memory),
            # The same with its keys in another order.
            value=memory.value_json if moved else None,
            base=memory.base_json,
            fold_state=counted.to_json() if state.is_adaptive else None,
        )
        return _Made(memory, new)

    async def _commit(self, state: HeldPrism, new: NewRevision, *, may_rest: bool) -> bool:
        """Writes a revision. With `may_rest` it looks whether that was the last chunk.

        Returns whether there is more to do.
        """
        with step_traces.commit(state.held, new) as traced:
            # In one round trip: appends to the session wait for whoever is about to leave.
            async with self._database.direct(state.tenant_id, name="commit") as tx:
                has_work = await revisions.commit_revision(
                    tx, state.held, traced, has_work=True, rests=may_rest
                )
        reach(FailPoint.COMMITTED)
        STEPS.add(1, {Attribute.KIND: new.kind})
        return has_work

    async def _rest(self, state: HeldPrism) -> HeldPrism | float | None:
        """Leaves a memory that is at the head, unless something came just now."""
        async with self._database.transaction(state.tenant_id, name="step") as tx:
            if await sessions.locked_head(tx, state.held.session_key) > state.held.applied_position:
                return replace(state, has_all=False)
            reach(FailPoint.REST_BEFORE)
            rested = await revisions.clear_work(tx, state.held)
            reach(FailPoint.REST_WRITTEN)
        reach(FailPoint.RESTED)
        # A consolidation was asked for since this worker took the memory.
        return None if rested else 0.0

    async def _hold(self, state: HeldPrism, error: BudgetExhausted) -> float | None:
        seconds = await budgets.hold(self._database, state.held, self._scope(state, ""), error)
        _log.info("memory is held", memory=str(state.held.memory_id), cause=error.message)
        return seconds

    async def _failed(
        self, state: HeldPrism, to_position: int, error: Exception
    ) -> HeldPrism | None:
        if await self._failing.put_off(state.tenant_id, state.held, error):
            return None
        if state.spec.on_failure is OnFailure.SKIP:
            return await self._skip(state, to_position, cause_of(error))
        await self._failing.stall(state.tenant_id, state.held, to_position, error)
        return None

    async def _skip(self, state: HeldPrism, to_position: int, cause: str) -> HeldPrism:
        memory = state.memory
        reads = to_position > state.held.applied_position
        new = NewRevision(
            # A consolidation that failed for good changes nothing, and is not tried again
            # before the memory has grown.
            kind="skip" if reads else "consolidation",
            to_position=to_position,
            digest=_digest(memory),
            consolidated_tokens=None if reads else memory.live_tokens,
            fold_state=state.counted(prompted=False),
        )
        with step_traces.commit(state.held, new) as traced:
            async with self._database.transaction(state.tenant_id, name="step") as tx:
                await revisions.commit_revision(tx, state.held, traced, has_work=True)
                await stalls.add_dead_letter(
                    tx, state.held, to_position=to_position, cause=cause, resolution="skipped"
                )
        STEPS.add(1, {Attribute.KIND: new.kind})
        return state.moved(new, memory)

    def _scope(self, state: HeldPrism, occasion: str) -> CallScope:
        return CallScope(
            tenant_id=state.tenant_id,
            session_key=state.held.session_key,
            memory_id=state.held.memory_id,
            occasion=occasion,
        )

    def _rules(self, spec: PrismSpec) -> Rules:
        return spec.rules(self._config.limits.max_memory_bytes)


@dataclass(frozen=True, slots=True)
class _Made:
    """What a revision makes of a memory, and how it is stored."""

    memory: PrismMemory
    new: NewRevision


def _sized(found: Sequence[LoggedChunk], count: Callable[[str], int]) -> Sequence[SizedChunk]:
    return [SizedChunk.of(logged, count) for logged in found]


def _digest(memory: PrismMemory) -> bytes:
    return hashlib.sha256(memory.value_json.encode()).digest()
