"""Defines the work on a PRISM memory: what a worker keeps of it between two steps."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from service.domain.prism import folding, pacing
from service.domain.prism.folding import FoldState, PromptSizes
from service.domain.prism.memory import PrismMemory
from service.domain.prism.pacing import SizedChunk, StepBounds
from service.domain.prism.spec import Encoding, PrismSpec
from service.domain.spend.prices import ModelPrices
from service.domain.values.errors import FailedPrecondition
from service.domain.values.reasons import Reason
from service.llm.providers.facts import ModelFacts
from storage.engine.claims import Claim
from storage.memories import revisions
from storage.memories.revisions import NewRevision

#: Chunks of a step, however small they are.
MAX_STEP_CHUNKS = 4096


@dataclass(frozen=True, kw_only=True, slots=True)
class PrismWork:
    """What this worker keeps of a claimed PRISM memory."""

    held: Claim
    memory: PrismMemory
    #: What is known about the model that is asked.
    facts: ModelFacts
    prices: ModelPrices
    bounds: StepBounds
    #: What the folding policy has counted; unused where the encoding has none.
    fold_state: FoldState
    #: Chunks after the cursor that were read already.
    pending: Sequence[SizedChunk] = ()
    #: The log had no more than these a moment ago.
    has_all: bool = False
    #: A proposal of the next step found no room: the memory is consolidated first.
    crowded: bool = False

    @property
    def spec(self) -> PrismSpec:
        """Returns how the memory is kept."""
        return PrismSpec.of(self.held)

    def moved(self, new: NewRevision, memory: PrismMemory) -> "PrismWork":
        """Returns the work after the next revision, which is `new`."""
        held = revisions.advanced(self.held, new)
        pending = tuple(one for one in self.pending if one.position > new.to_position)
        return replace(
            self,
            held=held,
            memory=memory,
            fold_state=FoldState.from_json(new.fold_state, held.revision),
            pending=pending,
            has_all=False,
            crowded=False,
        )

    @property
    def is_adaptive(self) -> bool:
        """Returns whether it is folded by price."""
        return self.spec.encoding is Encoding.ADAPTIVE

    @property
    def is_focused(self) -> bool:
        """Returns whether its next step is shown a part of it, and so no amendments."""
        return pacing.focus_tokens(self.spec, self.memory, self.bounds) is not None

    def folds_first(self, group: Sequence[SizedChunk]) -> bool:
        """Returns whether it is folded before the prompt over these chunks.

        Only stored rows and prices decide, so that a worker that takes over decides alike.
        """
        if not self.is_adaptive or not self.memory.batches or self.is_focused:
            return False
        return folding.is_due(
            self._sizes(), self.fold_state, self.prices, cold=self._is_cold(group)
        )

    def folded(self, group: Sequence[SizedChunk]) -> tuple[PrismMemory, FoldState]:
        """Folds the memory; returns it and what is counted then. `group` is read next, if any."""
        if not self.is_adaptive:
            return self.memory.fold(), self.fold_state
        cold = self._is_cold(group)
        return folding.fold(self.memory, self.fold_state, self.prices, cold=cold)

    def counted(self, *, prompted: bool) -> Mapping[str, Any] | None:
        """Returns the counts after the next revision; `prompted`: a prompt showed this one."""
        if not self.is_adaptive:
            return None
        if not prompted:
            return self.fold_state.skipped().to_json()
        return self.fold_state.stepped(self._sizes(), self.prices).to_json()

    def _sizes(self) -> PromptSizes:
        return PromptSizes.of(self.memory, self.bounds.task_tokens, self.fold_state.prompted)

    def _is_cold(self, group: Sequence[SizedChunk]) -> bool:
        """Returns whether the chunk came when the provider had forgotten the last prompt.

        By the times in the log: what waited in a backlog came before the last revision.
        """
        before = self.held.committed_at
        if before is None or not group:
            return False
        waited = group[0].logged.created_at - before
        return waited.total_seconds() > self.prices.ttl_seconds


def next_group(work: PrismWork) -> tuple[Sequence[SizedChunk], bool]:
    """Returns the chunks of the next step, and whether it has no room for another.

    A step that was paid for, by a worker that died before the commit, is made again
    with the same chunks, though more have come since: then its reply is in the ledger.
    """
    paid = [one for one in work.pending if one.position <= (work.held.paid_position or 0)]
    if paid and paid[-1].position == work.held.paid_position:
        return paid, True
    limit = pacing.group_tokens(work.spec, work.memory, work.bounds)
    group, full = pacing.read_group(work.pending[:MAX_STEP_CHUNKS], limit)
    return group, full or len(group) == MAX_STEP_CHUNKS


def no_room(work: PrismWork) -> FailedPrecondition:
    """Returns why nothing can be read any more."""
    bounds = work.bounds
    focus = pacing.focus_tokens(work.spec, work.memory, bounds)
    shown = work.memory.shown_tokens if focus is None else focus
    return FailedPrecondition(
        Reason.MEMORY_STALLED,
        f"the memory ({shown} tokens), the task ({bounds.task_tokens}) and a"
        f" reply ({bounds.step_output_tokens}) leave no room for text in the model's window of"
        f" {bounds.window_tokens} tokens, and consolidation does not make the memory smaller",
    )
