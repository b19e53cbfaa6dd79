"""Tree method: grows a summary tree to the head of its log, and closes it at its seal.

Segments are cut ahead, leaves and parents are summarized many at a time and stored in the
order of the text (`service.usecases.tree.pipeline`).
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from service.domain.calls.ledger import Gone
from service.domain.prompting.flows import Flow
from service.domain.tree.nodes import TextOffset
from service.domain.tree.planning import Planned, TreePlan
from service.domain.tree.segmenting import Segmenter
from service.domain.tree.spec import TreeSpec
from service.domain.tree.summarizing import Summary, compress, summarize
from service.domain.values.errors import BudgetExhausted
from service.domain.values.memory_specs import OnFailure
from service.telemetry import tracing
from service.telemetry.names import Attribute
from service.usecases.memories import step_traces
from service.usecases.memories.memory_method import (
    ClaimTransaction,
    MemoryMethod,
    PartFailed,
    StepBatch,
    StepNext,
    StepPart,
    StepWait,
    Turn,
)
from service.usecases.memories.metrics import STEPS, timed
from service.usecases.memories.step_failures import cause_of, is_final
from service.usecases.tree.pipeline import WINDOW, Pipeline, PipelineSteps
from service.usecases.tree.tree_log import TreeLog
from service.usecases.tree.work import TreeWork, check_room
from storage.engine.claims import Claim, Fenced
from storage.engine.database import Transaction
from storage.engine.errors import StorageError
from storage.log import sessions
from storage.memories import revisions, stalls
from storage.memories.revisions import NewRevision
from storage.tree import trees
from storage.tree.trees import Growth


class TreeMethod(MemoryMethod[Growth, TreeWork]):
    """Grows summary trees in one worker process."""

    kind = TreeSpec.kind
    claim = ClaimTransaction(name="claim.tree")

    async def read(self, tx: Transaction, held: Claim) -> Growth:
        """Reads what is built so far."""
        return await trees.read_growth(tx, held)

    async def load(self, held: Claim, found: Growth) -> TreeWork:
        """Plans what is due, and goes on where the last leaf ends."""
        spec = TreeSpec.of(held)
        plan = TreePlan(found.nodes, found.grouped, found.tops, max_children=spec.max_children)
        segmenter = Segmenter(spec.segment_tokens, self._tools.cut, found.end)
        model = self._tools.model(held)
        window = WINDOW * self._tools.config.build_concurrency
        return TreeWork(
            held=held,
            digest=found.digest,
            plan=plan,
            log=TreeLog(self._database, held, segmenter, plan, window=window),
            facts=self._tools.facts(model),
        )

    async def next(self, work: TreeWork) -> StepNext[TreeWork]:
        """Goes on with the tree until it has no more work."""
        if work.is_done:
            return StepWait()
        return StepBatch(work=work, run=partial(self._grow, work))

    async def lost(self, held: Claim) -> StepWait:
        """Retries at once where a seal was requested since the claim.

        What follows the seal must not get into the tree.
        """
        async with self._database.transaction(held.tenant_id, name="step") as tx:
            now = await revisions.lock(tx, held.session_key, held.memory_id)
        is_to_seal = now is not None and now.epoch == held.epoch and now.seal_position is not None
        return StepWait(seconds=0.0 if is_to_seal else None)

    async def _grow(self, work: TreeWork, turn: Turn) -> TreeWork | StepWait:
        steps = PipelineSteps(
            read=work.log.read,
            make=lambda planned: self._make(work, planned),
            store=lambda nodes, last: self._store(work, nodes, last=last),
        )
        pipeline = Pipeline(work.plan, steps, concurrency=self._tools.config.build_concurrency)
        is_whole = await pipeline.run(stop=turn.stop, until=turn.until)
        return work if is_whole and await self._idle(work) else StepWait(seconds=0.0)

    async def _make(self, work: TreeWork, planned: Planned) -> Summary:
        start, end = work.place_of(planned)
        part = StepPart(
            after_position=start.position - 1,
            to_position=end.last_position,
            skip=partial(_without, work, planned),
        )
        try:
            return await self._traced(work, planned, part)
        except StorageError:
            raise
        except Exception as error:
            # A poisoned text must not sink its neighbours, which are paid for.
            raise PartFailed(part, error) from error

    async def _traced(self, work: TreeWork, planned: Planned, part: StepPart[TreeWork]) -> Summary:
        """Makes a node: a step of its own in traces, which stores itself with others."""
        causes = None if planned.cut is not None else work.spans_under(planned)
        level = planned.level
        async with step_traces.step(self._database, work.held, part, level=level, causes=causes):
            with timed(self.kind):
                made = await self._made(work, planned)
            work.keep_span(planned, tracing.sampled())
            return made

    async def _made(self, work: TreeWork, planned: Planned) -> Summary:
        try:
            return await self._tools.ask(
                self._flow(work, planned),
                work.held,
                f"node:{planned.name}",
                at_once=self._tools.config.build_concurrency,
                check=partial(check_room, facts=work.facts),
            )
        except (StorageError, BudgetExhausted, Gone):
            raise
        except Exception as error:
            if work.spec.on_failure is not OnFailure.SKIP or not is_final(error):
                raise
            return work.skip(planned, cause_of(error))

    def _flow(self, work: TreeWork, planned: Planned) -> Flow[Summary]:
        terms = work.facts.terms(self._tools.marker_key)
        if planned.cut is not None:
            return summarize(planned.cut.text, spec=work.spec, trust=planned.cut.trust, **terms)
        summaries = [child.summary for child in work.plan.children(planned)]
        return compress(summaries, spec=work.spec, **terms)

    async def _store(self, work: TreeWork, nodes: Sequence[Planned], *, last: bool) -> None:
        """Commits nodes; with `last` it leaves the memory too, if nothing came just now."""
        held = work.held
        made = [one.node for one in nodes if one.node is not None]
        texts = {one.number: one.cut.text for one in nodes if one.cut is not None}
        skipped = [one for one in nodes if one in work.skipped]
        to_position = max([held.applied_position, *(one.to_position for one in made)])
        has_work = True
        async with self._database.transaction(held.tenant_id, name="commit.tree") as tx:
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
        """Seals the tree where that is wanted, or leaves it at the head; returns False to retry.

        Does nothing when there is more to read since.
        """
        held, position = work.held, work.log.position
        if work.is_done:
            return True
        if held.seal_position is not None:
            await self._seal(work)
            return True
        async with self._database.transaction(held.tenant_id, name="step.idle_tree") as tx:
            head = await sessions.locked_head(tx, held.session_key)
            if head is None:
                raise Fenced
            if head > position:
                return True
            if position == held.applied_position:
                work.is_done = await revisions.clear_work(tx, held)
                # Else a seal was requested since this worker claimed the memory.
                return work.is_done
            new = _empty(work, "step", position)
            await trees.commit(tx, held, new, (), {}, has_work=False)
        work.is_done = True
        self._stored(work, new)
        return True

    async def _seal(self, work: TreeWork) -> None:
        position = work.log.position
        async with self._database.transaction(work.held.tenant_id, name="step.seal") as tx:
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


def _without(work: TreeWork, planned: Planned, cause: str) -> TreeWork:
    """Goes on without a node that failed."""
    work.plan.finish(planned, work.skip(planned, cause))
    # What failed besides has its own tries.
    work.held = replace(work.held, attempts=0)
    return work


def _kind(held: Claim, to_position: int, *, skipped: bool) -> str:
    if to_position == held.applied_position:
        return "build"
    return "skip" if skipped else "step"


def _empty(work: TreeWork, kind: str, to_position: int) -> NewRevision:
    """Returns a revision without nodes."""
    return NewRevision(kind=kind, to_position=to_position, digest=trees.digest(work.digest, ()))


def _before(held: Claim, start: TextOffset) -> Claim:
    """Returns the memory as what failed at `start` found it."""
    return replace(held, applied_position=start.position - 1)
