"""PRISM method: says what a PRISM memory needs next.

It is folded when prompts that show its amendments cost more than a new base, consolidated
when it has grown, else revised by the next chunks.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from service.domain.log.chunks import LoggedChunk
from service.domain.prism import asking as prism
from service.domain.prism import entries, losses, pacing, prompts
from service.domain.prism.amendments import Amendment, Rejection, Revision, Rules
from service.domain.prism.folding import FoldState
from service.domain.prism.lingering import ServiceLinger, linger_of
from service.domain.prism.memory import PrismMemory
from service.domain.prism.pacing import Need, SizedChunk, StepBounds, Wish
from service.domain.prism.spec import PrismSpec, StepScope
from service.domain.prompting.flows import Flow
from service.llm.offloading import beside
from service.llm.providers.facts import ModelFacts
from service.usecases.memories.memory_method import (
    ClaimTransaction,
    MemoryChange,
    MemoryMethod,
    MemoryStep,
    StepNext,
    StepPart,
    StepWait,
)
from service.usecases.prism.work import MAX_STEP_CHUNKS, PrismWork, next_group, no_room
from storage.engine.claims import Claim, Fenced
from storage.engine.database import Transaction
from storage.log import chunks, sessions
from storage.memories import revisions
from storage.memories.revisions import NewRevision
from storage.prism import states
from storage.prism.states import PrismRows
from storage.search.entry_search import FILTERED_CHUNKS

#: Chunks that one query of the log reads.
READ_CHUNKS = 64
#: Content of one chunk that is read again: all of it, since a range has at least one.
REREAD_BYTES = 1
#: A step that waits for more chunks queries this often within its linger, but not sooner than
#: the second figure, in seconds.
LINGER_LOOKS = 4
MIN_LINGER_SECONDS = 0.2

#: What a claim reads: the memory, and the next chunks.
Found = tuple[PrismRows, Sequence[LoggedChunk]]


class PrismMethod(MemoryMethod[Found, PrismWork]):
    """Says what PRISM memories need, in one worker process."""

    kind = PrismSpec.kind
    claim = ClaimTransaction(name="claim.prism", occasion="revise")

    async def read(self, tx: Transaction, held: Claim) -> Found:
        """Reads the memory and the next chunks."""
        rows = await states.read_for_prompts(
            tx, held.session_key, held.memory_id, held.revision, PrismSpec.of(held).encoding
        )
        assert rows is not None, "the cursor's foreign key keeps the revision"
        return rows, await chunks.read(tx, held.session_key, held.applied_position, READ_CHUNKS)

    async def load(self, held: Claim, found: Found) -> PrismWork:
        """Loads the memory, and counts the tokens of the chunks."""
        rows, read = found
        spec = PrismSpec.of(held)
        model = self._tools.model(held)
        facts = self._tools.facts(model)
        # A large memory takes long; leases are renewed meanwhile.
        memory, task_tokens = await beside(self._loaded, spec, rows, facts)
        pending = await beside(_sized, read, facts.count)
        return PrismWork(
            held=held,
            memory=memory,
            facts=facts,
            prices=self._tools.prices(model),
            bounds=StepBounds.of(
                facts.window_tokens, task_tokens, self._tools.config.limits.max_memory_bytes
            ),
            fold_state=FoldState.from_json(held.fold_state, held.revision),
            pending=tuple(pending),
            has_all=len(read) < READ_CHUNKS,
        )

    def _loaded(
        self, spec: PrismSpec, rows: PrismRows, facts: ModelFacts
    ) -> tuple[PrismMemory, int]:
        """Loads the memory, and counts the task that precedes it in prompts."""
        focused = spec.steps is StepScope.FOCUSED
        task = prompts.revise_task(spec, self._rules(spec), is_focused=focused)
        memory = PrismMemory.load(
            spec.schema(),
            base_json=rows.base,
            amendments=rows.amendments,
            encoding=spec.encoding,
            count=facts.count,
        )
        return memory, facts.count(task)

    async def next(self, work: PrismWork) -> StepNext[PrismWork]:
        """Folds, consolidates or revises the memory, or leaves it at the head."""
        wish = Wish(
            applied_position=work.held.applied_position,
            consolidate_position=work.held.consolidate_position,
            consolidated_tokens=work.held.consolidated_tokens,
            crowded=work.crowded,
        )
        # The first to count a memory that has changed.
        need = await beside(pacing.next_need, work.spec, work.memory, work.bounds, wish)
        if need is Need.FOLD:
            return await beside(_fold, work)
        if need is Need.CONSOLIDATION:
            flow, made = partial(self._consolidation, work), partial(self._consolidated, work)
            return self._step(work, wish.applied_position, "consolidate", flow, made)
        if work.held.reread_positions:
            return await self._reread(work, work.held.reread_positions, need)
        work = await self._read(work)
        if not work.pending:
            return await self._idle(work)
        group, full = next_group(work)
        if not any(one.logged.is_read for one in group):
            return _passed(work, group)
        if not full:
            wait = await self._linger(work, group)
            if wait is not None:
                return wait
        # A prompt that was paid for was not folded for, whatever prices say by now.
        is_paid = work.held.paid_position == group[-1].position
        if need is not Need.ROOM and not is_paid and work.folds_first(group):
            return await beside(_fold, work, group)
        revise = partial(self._revision, work, group, has_room=need is not Need.ROOM)
        revised = partial(self._revised, work, group)
        return self._step(work, group[-1].position, "revise", revise, revised)

    async def _read(self, work: PrismWork) -> PrismWork:
        """Returns the work with enough chunks for a step, or all there are."""
        pending = list(work.pending)
        tokens = sum(one.tokens for one in pending)
        while len(pending) < MAX_STEP_CHUNKS and not work.has_all:
            reached = pending[-1].position if pending else work.held.applied_position
            if tokens >= work.spec.chunk_tokens and reached >= (work.held.paid_position or 0):
                break
            async with self._database.transaction(work.held.tenant_id, name="step") as tx:
                found = await chunks.read(tx, work.held.session_key, reached, READ_CHUNKS)
            sized = await beside(_sized, found, work.facts.count)
            tokens += sum(one.tokens for one in sized)
            pending += sized
            if len(found) < READ_CHUNKS:
                break
        return replace(work, pending=tuple(pending))

    async def _reread(
        self, work: PrismWork, positions: Sequence[int], need: Need
    ) -> StepNext[PrismWork]:
        """Reads chunks before the cursor again whose steps were undone."""
        # Filters see no more of the chunks between the first and the last.
        most = positions[0] + FILTERED_CHUNKS
        part = [position for position in positions[:READ_CHUNKS] if position < most]
        ranges = [(position - 1, position) for position in part]
        async with self._database.transaction(work.held.tenant_id, name="step") as tx:
            found = await chunks.read_ranges(tx, work.held.session_key, ranges, REREAD_BYTES)
        read = [one for position in part for one in found.get(position - 1, ()) if one.is_read]
        sized = await beside(_sized, read, work.facts.count)
        if not sized:
            return _read_again(work, part, ())
        limit = pacing.group_tokens(work.spec, work.memory, work.bounds)
        group, _ = pacing.read_group(sized, limit)
        done = [position for position in part if position <= group[-1].position]
        cursor = work.held.applied_position
        step = self._step(
            work,
            cursor,
            "reread",
            partial(self._revision, work, group, has_room=need is not Need.ROOM),
            partial(self._reread_done, work, done),
        )
        part_of = replace(step.part, skip=lambda _: _read_again(work, done, ()))
        occasion = f"reread:{work.held.revision + 1}:{group[-1].position}"
        return replace(step, part=part_of, occasion=occasion)

    def _reread_done(
        self, work: PrismWork, done: Sequence[int], revision: Revision
    ) -> MemoryChange[PrismWork] | PrismWork:
        if revision.lacked_room and pacing.may_make_room(
            work.memory, work.held.consolidated_tokens
        ):
            return replace(work, crowded=True)
        return _read_again(work, done, revision.amendments, revision.rejections)

    async def _linger(
        self, work: PrismWork, group: Sequence[SizedChunk]
    ) -> StepNext[PrismWork] | None:
        """Delays a step that could still grow; None: it does not wait."""
        held = work.held
        # A flush also ends the linger of what comes with the flushed chunks.
        if group[0].position <= held.flush_position or held.attempts:
            return None
        if held.paid_position is not None:
            return None
        linger = linger_of(work.spec, group, self._service_linger(), work.facts.count)
        if linger is None:
            return None
        look = min(max(linger.seconds / LINGER_LOOKS, MIN_LINGER_SECONDS), linger.seconds)
        async with self._database.transaction(held.tenant_id, name="step") as tx:
            if linger.until_more and await self._has_more(tx, work, group):
                waits = None
            else:
                look_seconds = None if linger.until_more else look
                waits = await revisions.linger(tx, held, due=linger.due, look_seconds=look_seconds)
        if waits is None:
            return await self.next(replace(work, has_all=False))
        if not waits:
            return None
        return StepWait() if linger.until_more else StepWait(seconds=look)

    @staticmethod
    async def _has_more(tx: Transaction, work: PrismWork, group: Sequence[SizedChunk]) -> bool:
        """Returns whether more came than a step would read; keeps the head where it is.

        An append wakes only the memories that wait for it by then.
        """
        head = await sessions.locked_head(tx, work.held.session_key)
        if head is None:
            raise Fenced
        return head > group[-1].position

    def _service_linger(self) -> ServiceLinger:
        config = self._tools.config
        return ServiceLinger(
            message_seconds=config.message_linger_seconds,
            small_talk_tokens=config.small_talk_tokens,
            small_talk_seconds=config.small_talk_linger_seconds,
        )

    def _step(
        self,
        work: PrismWork,
        to_position: int,
        occasion: str,
        flow: Callable[[], Flow[Revision]],
        made: Callable[[Revision], MemoryChange[PrismWork] | PrismWork],
    ) -> MemoryStep[PrismWork]:
        return MemoryStep(
            work=work,
            part=StepPart(
                after_position=work.held.applied_position,
                to_position=to_position,
                skip=partial(_skipped, work, to_position),
            ),
            occasion=f"{occasion}:{work.held.revision + 1}:{to_position}",
            flow=flow,
            made=made,
        )

    def _revision(
        self, work: PrismWork, group: Sequence[SizedChunk], *, has_room: bool
    ) -> Flow[Revision]:
        if not has_room:
            raise no_room(work)
        limit = pacing.piece_tokens(work.spec, work.memory, work.bounds)
        return prism.revise_in_parts(
            work.spec,
            work.memory,
            pacing.parts(group, limit, work.facts.count),
            number=work.held.revision + 1,
            marker_key=self._tools.marker_key,
            rules=self._rules(work.spec),
            output_tokens=work.bounds.step_output_tokens,
            most_tokens=pacing.most_step_tokens(work.spec, work.memory, work.bounds, group, limit),
            focus=lambda memory: pacing.focus_tokens(work.spec, memory, work.bounds),
        )

    def _revised(
        self, work: PrismWork, group: Sequence[SizedChunk], revision: Revision
    ) -> MemoryChange[PrismWork] | PrismWork:
        held = work.held
        if revision.lacked_room and pacing.may_make_room(work.memory, held.consolidated_tokens):
            # Rejections are for good. The text is read again when there is more room.
            return replace(work, crowded=True)
        memory = work.memory.apply(held.revision + 1, revision.amendments)
        return _change(
            work,
            memory,
            name="commit.step",
            may_idle=len(group) == len(work.pending),
            kind="step",
            to_position=group[-1].position,
            amendments=revision.amendments,
            rejections=revision.rejections,
            value=memory.value_json if revision.amendments else None,
            fold_state=work.counted(prompted=not work.is_focused),
            losses=losses.after_step(
                held.losses,
                revision,
                memory.value,
                self._rules(work.spec),
                first_position=held.applied_position + 1,
            ),
        )

    def _consolidation(self, work: PrismWork) -> Flow[Revision]:
        return prism.consolidate(
            work.spec,
            work.memory,
            marker_key=self._tools.marker_key,
            rules=self._rules(work.spec),
            budget_tokens=pacing.goal_tokens(work.spec, work.memory, work.bounds),
            output_tokens=work.bounds.consolidation_output_tokens,
            most_tokens=pacing.most_consolidation_tokens(work.memory, work.bounds),
            room_tokens=pacing.consolidation_tokens(work.bounds),
        )

    def _consolidated(self, work: PrismWork, revision: Revision) -> MemoryChange[PrismWork]:
        held = work.held
        memory = work.memory.apply(held.revision + 1, revision.amendments).fold()
        return _change(
            work,
            memory,
            name="commit.consolidation",
            kind="consolidation",
            amendments=revision.amendments,
            rejections=revision.rejections,
            value=memory.value_json if revision.amendments else None,
            # Prompts have no line for what was removed.
            base=memory.value_json,
            consolidated_tokens=memory.live_tokens,
            losses=losses.after_change(held.losses, memory.value, self._rules(work.spec)),
        )

    async def _idle(self, work: PrismWork) -> StepNext[PrismWork]:
        """Leaves a memory that is at the head, unless something came just now."""
        async with self._database.transaction(work.held.tenant_id, name="step.idle_prism") as tx:
            head = await sessions.locked_head(tx, work.held.session_key)
            if head is None:
                raise Fenced
            has_more = head > work.held.applied_position
            is_idle = not has_more and await revisions.clear_work(tx, work.held)
        if has_more:
            return await self.next(replace(work, has_all=False))
        # Else a consolidation was asked for since this worker took the memory.
        return StepWait() if is_idle else StepWait(seconds=0.0)

    def _rules(self, spec: PrismSpec) -> Rules:
        return spec.rules(self._tools.config.limits.max_memory_bytes)


def _fold(work: PrismWork, group: Sequence[SizedChunk] = ()) -> MemoryChange[PrismWork]:
    memory, counted = work.folded(group)
    return _change(
        work,
        memory,
        name="commit.fold",
        kind="fold",
        # The same with its keys in another order.
        value=memory.value_json if memory.value_json != work.memory.value_json else None,
        base=memory.base_json,
        fold_state=counted.to_json() if work.is_adaptive else None,
    )


def _passed(work: PrismWork, group: Sequence[SizedChunk]) -> MemoryChange[PrismWork]:
    """Returns the step over chunks of which none is read: it changes nothing."""
    return _change(
        work,
        work.memory,
        name="commit.step",
        may_idle=len(group) == len(work.pending),
        kind="step",
        to_position=group[-1].position,
        fold_state=work.counted(prompted=False),
    )


def _read_again(
    work: PrismWork,
    done: Sequence[int],
    amendments: Sequence[Amendment],
    rejections: Sequence[Rejection] = (),
) -> MemoryChange[PrismWork]:
    """Returns the revision after these positions were read again."""
    memory = work.memory.apply(work.held.revision + 1, amendments)
    last = done[-1]
    return _change(
        work,
        memory,
        name="commit.step",
        kind="quarantine",
        amendments=amendments,
        rejections=rejections,
        value=memory.value_json if amendments else None,
        fold_state=work.counted(prompted=False),
        read_positions=done,
        reread_positions=[one for one in work.held.reread_positions or () if one > last],
        positions=(done[0], last),
    )


def _skipped(work: PrismWork, to_position: int, _: str) -> MemoryChange[PrismWork]:
    reads = to_position > work.held.applied_position
    return _change(
        work,
        work.memory,
        name="step",
        # A consolidation that failed for good changes nothing, and is not tried again
        # before the memory has grown.
        kind="skip" if reads else "consolidation",
        to_position=to_position,
        consolidated_tokens=None if reads else work.memory.live_tokens,
        fold_state=work.counted(prompted=False),
    )


def _change(
    work: PrismWork,
    memory: PrismMemory,
    *,
    name: str,
    kind: str,
    may_idle: bool = False,
    to_position: int | None = None,
    amendments: Sequence[Amendment] = (),
    positions: tuple[int, int] | None = None,
    **brought: Any,
) -> MemoryChange[PrismWork]:
    """Returns what leads to `memory`; with `may_idle` the commit looks for more chunks itself.

    `positions`: the chunks that were read, where these are not between the cursors.
    """
    reached = work.held.applied_position if to_position is None else to_position
    new = NewRevision(
        kind=kind,
        to_position=reached,
        digest=hashlib.sha256(memory.value_json.encode()).digest(),
        amendments=amendments,
        entries=entries.entries_after(
            memory.schema,
            work.memory.value,
            memory.value,
            amendments,
            revision=work.held.revision + 1,
            positions=positions or entries.positions_of(kind, work.held.applied_position, reached),
        ),
        **brought,
    )

    async def write(tx: Transaction, new: NewRevision) -> bool:
        return await revisions.commit_revision(tx, work.held, new, has_work=True, may_idle=may_idle)

    return MemoryChange(
        new=new, work=work.moved(new, memory), write=write, name=name, is_direct=True
    )


def _sized(found: Sequence[LoggedChunk], count: Callable[[str], int]) -> Sequence[SizedChunk]:
    return [SizedChunk.of(logged, count) for logged in found]
