"""Tree method: grows a summary tree to the head of its log, and closes it at its seal.

Segments are cut ahead, leaves and parents are summarized many at a time and stored in the
order of the text (`service.usecases.tree.pipeline`). No transaction is open while a model
thinks; each reply is durable before it is used. What makes it exactly-once is in the keys
of `storage.tables.tree_node` and `revision`; the epoch only saves the work of a worker
that lost its memory to another one.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import structlog
from opentelemetry.trace import SpanContext

from service.domain.calls.ledger import Gone
from service.domain.prompting.flows import Flow, ModelReply, ModelRequest
from service.domain.prompting.splitting import Cutter
from service.domain.tree.nodes import TextOffset
from service.domain.tree.planning import Planned, TreePlan
from service.domain.tree.segmenting import Segmenter
from service.domain.tree.summarizing import Summary, compress, summarize
from service.domain.values.errors import BudgetExhausted
from service.domain.values.memory_kinds import MemoryKind, OnFailure
from service.domain.values.work_items import WorkItem
from service.llm.gateway.driver import drive
from service.llm.gateway.gateway import Gateway
from service.llm.providers.facts import ModelFacts
from service.llm.splitter import first_piece
from service.settings.config import Config
from service.telemetry import tracing
from service.telemetry.names import Attribute
from service.usecases.memories import step_traces
from service.usecases.memories.metrics import FENCED, STEPS, timed
from service.usecases.memories.step_failures import StepFailures, asked_anew, cause_of, is_final
from service.usecases.spend import budgets
from service.usecases.tree.pipeline import WINDOW, NodeFailed, Pipeline, PipelineSteps
from service.usecases.tree.tree_log import TreeLog
from service.usecases.tree.work import TreeWork, check_room
from storage.calls import intents
from storage.engine.claims import Claim, Fenced
from storage.engine.database import Database
from storage.engine.errors import StorageError
from storage.log import sessions
from storage.memories import revisions, stalls
from storage.memories.revisions import NewRevision
from storage.tree import trees

_log = structlog.get_logger("palimpsest.build")


class TreeMethod:
    """Grows summary trees in one worker process."""

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
        """Grows the tree until it is at the head, or sealed; None when there is no more to do.

        Else the seconds after which somebody should come back: at once when its time is up
        (`drain_seconds`), when `stop` is set, and when somebody wants it sealed since. None
        also when a node failed and waits for its next try, or another worker has taken the
        memory over. Raises StorageError when the database cannot be reached.
        """
        until = asyncio.get_running_loop().time() + self._config.drain_seconds
        work = await self._take(item)
        if work is None:
            return None
        try:
            return await self._grow(work, stop, until)
        except Fenced:
            return await self._lost(work)

    async def _take(self, item: WorkItem) -> TreeWork | None:
        async with self._database.transaction(item.tenant_id, name="claim.tree") as tx:
            held = await revisions.claim(tx, item.session_key, item.item_id, MemoryKind.TREE)
            if held is None:
                return None
            if held.has_dead_intents:
                await intents.forget(tx, held.session_key)
            growth = await trees.read_growth(tx, held)
        spec = held.tree
        plan = TreePlan(growth.nodes, growth.grouped, growth.tops, max_children=spec.max_children)
        segmenter = Segmenter(spec.segment_tokens, self._cut, growth.end)
        model = spec.model or self._config.model
        window = WINDOW * self._config.build_concurrency
        return TreeWork(
            tenant_id=item.tenant_id,
            held=held,
            digest=growth.digest,
            plan=plan,
            log=TreeLog(self._database, item.tenant_id, held, segmenter, plan, window=window),
            model=model,
            facts=self._facts(model),
        )

    async def _grow(self, work: TreeWork, stop: asyncio.Event | None, until: float) -> float | None:
        steps = PipelineSteps(
            read=work.log.read,
            make=lambda planned: self._make(work, planned),
            store=lambda nodes, last: self._store(work, nodes, last=last),
        )
        while not work.is_done:
            pipeline = Pipeline(work.plan, steps, concurrency=self._config.build_concurrency)
            try:
                if not await pipeline.run(stop=stop, until=until):
                    return 0.0
                if not await self._idle(work):
                    return 0.0
            except (Fenced, StorageError):
                raise
            except NodeFailed as failed:
                if isinstance(failed.error, Gone):
                    raise Fenced from failed
                if isinstance(failed.error, BudgetExhausted):
                    return await self._hold(work, failed.error)
                if not await self._failed(work, failed.planned, failed.error):
                    return None
            except Exception as error:
                # A poisoned chunk must stall its memory, not kill its worker.
                await self._failed(work, None, error)
                return None
        return None

    async def _make(self, work: TreeWork, planned: Planned) -> Summary:
        """Makes a node: a step of its own in traces, which stores itself with others."""
        start, end = work.place_of(planned)
        if planned.cut is None:
            causes: Sequence[SpanContext] = work.spans_under(planned)
        else:
            causes = await step_traces.appends(
                self._database,
                work.tenant_id,
                work.held.session_key,
                after=start.position - 1,
                upto=end.last_position,
            )
        with step_traces.work(work.held, causes) as span:
            span.set_attribute(Attribute.LEVEL, planned.level)
            span.set_attribute(Attribute.FROM_POSITION, start.position - 1)
            span.set_attribute(Attribute.TO_POSITION, end.last_position)
            with timed(MemoryKind.TREE):
                made = await self._made(work, planned)
            work.keep_span(planned, tracing.sampled())
            return made

    async def _made(self, work: TreeWork, planned: Planned) -> Summary:
        async def call(ask: ModelRequest) -> ModelReply:
            check_room(ask, work.facts)
            scope = work.scope(f"node:{planned.name}")
            return await self._gateway.call(
                asked_anew(ask, work.held),
                model=work.model,
                scope=scope,
                at_once=self._config.build_concurrency,
            )

        try:
            return await drive(self._flow(work, planned), call)
        except (StorageError, BudgetExhausted, Gone):
            raise
        except Exception as error:
            if work.spec.on_failure is not OnFailure.SKIP or not is_final(error):
                raise
            return work.skip(planned, cause_of(error))

    def _flow(self, work: TreeWork, planned: Planned) -> Flow[Summary]:
        facts = work.facts
        known: dict[str, Any] = {
            "spec": work.spec,
            "marker_key": self._marker_key,
            "window_tokens": facts.window_tokens,
            "count": facts.count,
        }
        if planned.cut is not None:
            return summarize(planned.cut.text, **known)
        return compress([child.summary for child in work.plan.children(planned)], **known)

    async def _store(self, work: TreeWork, nodes: Sequence[Planned], *, last: bool) -> None:
        """Commits nodes; with `last` it leaves the memory too, if nothing came just now."""
        held = work.held
        made = [one.node for one in nodes if one.node is not None]
        texts = {one.number: one.cut.text for one in nodes if one.cut is not None}
        skipped = [one for one in nodes if one in work.skipped]
        to_position = max([held.applied_position, *(one.to_position for one in made)])
        has_work = True
        async with self._database.transaction(work.tenant_id, name="commit.tree") as tx:
            if last and held.seal_position is None:
                head = await sessions.locked_head(tx, held.session_key)
                if head is None:
                    raise Fenced
                has_work = head > work.log.position
                to_position = to_position if has_work else head
            new = NewRevision(
                kind=_kind(held, to_position, skipped=bool(skipped)),
                to_position=to_position,
                digest=trees.digest(work.digest, made),
            )
            causes = [work.spans[one.name] for one in nodes if one.name in work.spans]
            with step_traces.commit(held, new, causes) as traced:
                await trees.commit(tx, held, traced, made, texts, has_work=has_work)
            for one in skipped:
                start, end = work.place_of(one)
                skip = work.skipped.pop(one)
                await stalls.add_dead_letter(
                    tx,
                    replace(_before(held, start), attempts=skip.attempts),
                    to_position=end.last_position,
                    cause=skip.cause,
                    resolution="skipped",
                )
        work.is_done = not has_work
        self._stored(work, new)

    async def _idle(self, work: TreeWork) -> bool:
        """Seals the tree where that is wanted, or leaves it at the head; False: come back.

        Nothing at all when there is more to read since.
        """
        held, position = work.held, work.log.position
        if work.is_done:
            return True
        if held.seal_position is not None:
            await self._seal(work)
            return True
        async with self._database.transaction(work.tenant_id, name="step.idle_tree") as tx:
            head = await sessions.locked_head(tx, held.session_key)
            if head is None:
                raise Fenced
            if head > position:
                return True
            if position == held.applied_position:
                work.is_done = await revisions.clear_work(tx, held)
                # Else a seal is wanted since this worker took the memory.
                return work.is_done
            new = _empty(work, "step", position)
            await trees.commit(tx, held, new, (), {}, has_work=False)
        work.is_done = True
        self._stored(work, new)
        return True

    async def _seal(self, work: TreeWork) -> None:
        position = work.log.position
        async with self._database.transaction(work.tenant_id, name="step.seal") as tx:
            if position > work.held.applied_position:
                new = _empty(work, "step", position)
                await trees.commit(tx, work.held, new, (), {}, has_work=True)
                self._stored(work, new)
            new = _empty(work, "seal", position)
            await trees.seal(tx, work.held, new)
        work.is_done = True
        self._stored(work, new)

    def _stored(self, work: TreeWork, new: NewRevision) -> None:
        work.move(new)
        STEPS.add(1, {Attribute.KIND: new.kind})

    async def _lost(self, work: TreeWork) -> float | None:
        """What `drain` returns when something was thrown away."""
        FENCED.add(1)
        held = work.held
        async with self._database.transaction(work.tenant_id, name="step") as tx:
            now = await revisions.lock(tx, held.session_key, held.memory_id)
        if now is not None and now.epoch == held.epoch and now.seal_position is not None:
            # Somebody wants it sealed, and what is behind must not get into it.
            return 0.0
        _log.info("memory is in other hands", memory=str(held.memory_id))
        return None

    async def _hold(self, work: TreeWork, error: BudgetExhausted) -> float | None:
        seconds = await budgets.hold(self._database, work.held, work.scope(""), error)
        _log.info("memory is held", memory=str(work.held.memory_id), cause=error.message)
        return seconds

    async def _failed(self, work: TreeWork, planned: Planned | None, error: Exception) -> bool:
        """Counts a failed try; whether the tree goes on now, without what failed."""
        held = work.held
        if await self._failures.back_off(work.tenant_id, held, error):
            return False
        if planned is not None and work.spec.on_failure is OnFailure.SKIP:
            work.plan.finish(planned, work.skip(planned, cause_of(error)))
            # What failed besides has its own tries.
            work.held = replace(held, attempts=0)
            return True
        to_position = held.applied_position + 1
        if planned is not None:
            start, end = work.place_of(planned)
            held, to_position = _before(held, start), end.last_position
        await self._failures.stall(work.tenant_id, held, to_position, error)
        return False


def _kind(held: Claim, to_position: int, *, skipped: bool) -> str:
    if to_position == held.applied_position:
        return "build"
    return "skip" if skipped else "step"


def _empty(work: TreeWork, kind: str, to_position: int) -> NewRevision:
    """A revision without nodes."""
    return NewRevision(kind=kind, to_position=to_position, digest=trees.digest(work.digest, ()))


def _before(held: Claim, start: TextOffset) -> Claim:
    """The memory as what failed at `start` finds it."""
    return replace(held, applied_position=start.position - 1)
