"""Building: a summary tree is brought up to the head of its log, and closed at its seal.

Segments are cut ahead, leaves and parents are summarized many at a time and stored in the
order of the text (`service.usecases.pipeline`). No transaction is open while a model
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

from service import tracing
from service.config import Config
from service.domain.errors import BudgetExhausted
from service.domain.fail_points import FailPoint, reach
from service.domain.flows import Flow, ModelAsk, ModelReply
from service.domain.memory_choices import OnFailure
from service.domain.specs import MemoryKind
from service.domain.splitting import Cutter
from service.domain.tree.nodes import Place
from service.domain.tree.planning import Plan, Planned
from service.domain.tree.segmenting import Segmenter
from service.domain.tree.summarizing import Summary, compress, summarize
from service.domain.work import WorkItem
from service.llm.driver import drive
from service.llm.facts import ModelFacts
from service.llm.gateway import Gateway
from service.splitter import first_piece
from service.telemetry.names import Attribute
from service.usecases import budgets, step_traces
from service.usecases.failing import Failing, asked_anew, cause_of, is_final
from service.usecases.held_tree import HeldTree, check_room
from service.usecases.pipeline import WINDOW, NodeFailed, Pipeline, Steps
from service.usecases.step_meters import FENCED, STEPS, timed
from service.usecases.tree_log import TreeLog
from storage import intents, revisions, sessions, stalls, trees
from storage.database import Database
from storage.errors import StorageError
from storage.revisions import Claim, Fenced, NewRevision

_log = structlog.get_logger("palimpsest.build")


class Builder:
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
        self._failing = Failing(database, config)

    async def drain(self, item: WorkItem, *, stop: asyncio.Event | None = None) -> float | None:
        """Grows the tree until it is at the head, or sealed; None when there is no more to do.

        Else the seconds after which somebody should come back: at once when its time is up
        (`drain_seconds`), when `stop` is set, and when somebody wants it sealed since. None
        also when a node failed and waits for its next try, or another worker has taken the
        memory over. Raises StorageError when the database cannot be reached.
        """
        until = asyncio.get_running_loop().time() + self._config.drain_seconds
        site = await self._take(item)
        if site is None:
            return None
        try:
            return await self._grow(site, stop, until)
        except Fenced:
            return await self._lost(site)

    async def _take(self, item: WorkItem) -> HeldTree | None:
        async with self._database.transaction(item.tenant_id, name="claim") as tx:
            held = await revisions.claim(tx, item.session_key, item.item_id, MemoryKind.TREE)
            if held is None:
                return None
            if held.has_dead_intents:
                await intents.forget(tx, held.session_key)
            growth = await trees.read_growth(tx, held)
        reach(FailPoint.TREE_TAKEN)
        spec = held.tree
        plan = Plan(growth.nodes, growth.grouped, growth.tops, max_children=spec.max_children)
        segmenter = Segmenter(spec.segment_tokens, self._cut, growth.end)
        model = spec.model or self._config.model
        window = WINDOW * self._config.build_concurrency
        return HeldTree(
            tenant_id=item.tenant_id,
            held=held,
            digest=growth.digest,
            plan=plan,
            log=TreeLog(self._database, item.tenant_id, held, segmenter, plan, window=window),
            model=model,
            facts=self._facts(model),
        )

    async def _grow(self, site: HeldTree, stop: asyncio.Event | None, until: float) -> float | None:
        steps = Steps(
            read=site.log.read,
            make=lambda planned: self._make(site, planned),
            store=lambda nodes, last: self._store(site, nodes, last=last),
        )
        while not site.is_done:
            pipeline = Pipeline(site.plan, steps, concurrency=self._config.build_concurrency)
            try:
                if not await pipeline.run(stop=stop, until=until):
                    return 0.0
                if not await self._rest(site):
                    return 0.0
            except (Fenced, StorageError):
                raise
            except NodeFailed as failed:
                if isinstance(failed.error, BudgetExhausted):
                    return await self._hold(site, failed.error)
                if not await self._failed(site, failed.planned, failed.error):
                    return None
            except Exception as error:
                # A poisoned chunk must stall its memory, not kill its worker.
                await self._failed(site, None, error)
                return None
        return None

    async def _make(self, site: HeldTree, planned: Planned) -> Summary:
        """Makes a node: a step of its own in traces, which stores itself with others."""
        start, end = site.place_of(planned)
        if planned.cut is None:
            causes: Sequence[SpanContext] = site.spans_under(planned)
        else:
            causes = await step_traces.appends(
                self._database,
                site.tenant_id,
                site.held.session_key,
                after=start.position - 1,
                upto=end.last_position,
            )
        with step_traces.work(site.held, causes) as span:
            span.set_attribute(Attribute.LEVEL, planned.level)
            span.set_attribute(Attribute.FROM_POSITION, start.position - 1)
            span.set_attribute(Attribute.TO_POSITION, end.last_position)
            with timed(MemoryKind.TREE):
                made = await self._made(site, planned)
            site.keep_span(planned, tracing.sampled())
            return made

    async def _made(self, site: HeldTree, planned: Planned) -> Summary:
        async def call(ask: ModelAsk) -> ModelReply:
            check_room(ask, site.facts)
            scope = site.scope(f"node:{planned.name}")
            return await self._gateway.call(
                asked_anew(ask, site.held),
                model=site.model,
                scope=scope,
                at_once=self._config.build_concurrency,
            )

        try:
            made = await drive(self._flow(site, planned), call)
            reach(FailPoint.NODE_MADE)
            return made
        except (StorageError, BudgetExhausted):
            raise
        except Exception as error:
            if site.spec.on_failure is not OnFailure.SKIP or not is_final(error):
                raise
            return site.skip(planned, cause_of(error))

    def _flow(self, site: HeldTree, planned: Planned) -> Flow[Summary]:
        facts = site.facts
        known: dict[str, Any] = {
            "spec": site.spec,
            "marker_key": self._marker_key,
            "window_tokens": facts.window_tokens,
            "count": facts.count,
        }
        if planned.cut is not None:
            return summarize(planned.cut.text, **known)
        return compress([child.summary for child in site.plan.children(planned)], **known)

    async def _store(self, site: HeldTree, nodes: Sequence[Planned], *, last: bool) -> None:
        """Commits nodes; with `last` it leaves the memory too, if nothing came just now."""
        held = site.held
        made = [one.node for one in nodes if one.node is not None]
        texts = {one.number: one.cut.text for one in nodes if one.cut is not None}
        skipped = [one for one in nodes if one in site.skipped]
        to_position = max([held.applied_position, *(one.to_position for one in made)])
        has_work = True
        async with self._database.transaction(site.tenant_id, name="commit") as tx:
            reach(FailPoint.STORE_BEGUN)
            if last and held.seal_position is None:
                head = await sessions.locked_head(tx, held.session_key)
                reach(FailPoint.STORE_HEAD_LOCKED)
                has_work = head > site.log.position
                to_position = to_position if has_work else head
            new = NewRevision(
                kind=_kind(held, to_position, skipped=bool(skipped)),
                to_position=to_position,
                digest=trees.digest(site.digest, made),
            )
            causes = [site.spans[one.name] for one in nodes if one.name in site.spans]
            with step_traces.commit(held, new, causes) as traced:
                await trees.commit(tx, held, traced, made, texts, has_work=has_work)
            for one in skipped:
                start, end = site.place_of(one)
                skip = site.skipped.pop(one)
                await stalls.add_dead_letter(
                    tx,
                    replace(_before(held, start), attempts=skip.attempts),
                    to_position=end.last_position,
                    cause=skip.cause,
                    resolution="skipped",
                )
        reach(FailPoint.STORED)
        site.is_done = not has_work
        self._stored(site, new)

    async def _rest(self, site: HeldTree) -> bool:
        """Seals the tree where that is wanted, or leaves it at the head; False: come back.

        Nothing at all when there is more to read since.
        """
        held, position = site.held, site.log.position
        if site.is_done:
            return True
        if held.seal_position is not None:
            await self._seal(site)
            return True
        async with self._database.transaction(site.tenant_id, name="step") as tx:
            if await sessions.locked_head(tx, held.session_key) > position:
                return True
            if position == held.applied_position:
                site.is_done = await revisions.clear_work(tx, held)
                # Else a seal is wanted since this worker took the memory.
                return site.is_done
            new = _empty(site, "step", position)
            await trees.commit(tx, held, new, (), {}, has_work=False)
        reach(FailPoint.TREE_RESTED)
        site.is_done = True
        self._stored(site, new)
        return True

    async def _seal(self, site: HeldTree) -> None:
        position = site.log.position
        async with self._database.transaction(site.tenant_id, name="step") as tx:
            reach(FailPoint.SEAL_BEGUN)
            if position > site.held.applied_position:
                new = _empty(site, "step", position)
                await trees.commit(tx, site.held, new, (), {}, has_work=True)
                self._stored(site, new)
            new = _empty(site, "seal", position)
            await trees.seal(tx, site.held, new)
            reach(FailPoint.SEAL_WRITTEN)
        reach(FailPoint.SEALED)
        site.is_done = True
        self._stored(site, new)

    def _stored(self, site: HeldTree, new: NewRevision) -> None:
        site.move(new)
        STEPS.add(1, {Attribute.KIND: new.kind})

    async def _lost(self, site: HeldTree) -> float | None:
        """What `drain` returns when something was thrown away."""
        FENCED.add(1)
        held = site.held
        async with self._database.transaction(site.tenant_id, name="step") as tx:
            now = await revisions.lock(tx, held.session_key, held.memory_id)
        if now is not None and now.epoch == held.epoch and now.seal_position is not None:
            # Somebody wants it sealed, and what is behind must not get into it.
            return 0.0
        _log.info("memory is in other hands", memory=str(held.memory_id))
        return None

    async def _hold(self, site: HeldTree, error: BudgetExhausted) -> float | None:
        seconds = await budgets.hold(self._database, site.held, site.scope(""), error)
        _log.info("memory is held", memory=str(site.held.memory_id), cause=error.message)
        return seconds

    async def _failed(self, site: HeldTree, planned: Planned | None, error: Exception) -> bool:
        """Counts a failed try; whether the tree goes on now, without what failed."""
        held = site.held
        if await self._failing.put_off(site.tenant_id, held, error):
            return False
        if planned is not None and site.spec.on_failure is OnFailure.SKIP:
            site.plan.finish(planned, site.skip(planned, cause_of(error)))
            # What failed besides has its own tries.
            site.held = replace(held, attempts=0)
            return True
        to_position = held.applied_position + 1
        if planned is not None:
            start, end = site.place_of(planned)
            held, to_position = _before(held, start), end.last_position
        await self._failing.stall(site.tenant_id, held, to_position, error)
        return False


def _kind(held: Claim, to_position: int, *, skipped: bool) -> str:
    if to_position == held.applied_position:
        return "build"
    return "skip" if skipped else "step"


def _empty(site: HeldTree, kind: str, to_position: int) -> NewRevision:
    """A revision without nodes."""
    return NewRevision(kind=kind, to_position=to_position, digest=trees.digest(site.digest, ()))


def _before(held: Claim, start: Place) -> Claim:
    """The memory as what failed at `start` finds it."""
    return replace(held, applied_position=start.position - 1)
