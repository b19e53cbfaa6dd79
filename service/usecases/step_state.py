"""A memory in a worker's hands, between two steps."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from service.domain.errors import FailedPrecondition
from service.domain.prism import pacing
from service.domain.prism.memory import PrismMemory
from service.domain.prism.pacing import Bounds, SizedChunk
from service.domain.prism.spec import PrismSpec
from service.domain.reasons import Reason
from service.llm.facts import ModelFacts
from storage.revisions import Claim, NewRevision

#: Chunks of a step, however small they are.
MAX_STEP_CHUNKS = 4096


@dataclass(frozen=True, kw_only=True, slots=True)
class State:
    """A memory in this worker's hands."""

    tenant_id: UUID
    held: Claim
    memory: PrismMemory
    #: The model that is asked, and what is known about it.
    model: str
    #: Whether it is asked for replies by a schema.
    structured: bool
    facts: ModelFacts
    bounds: Bounds
    #: Chunks behind the cursor that were read already.
    pending: Sequence[SizedChunk] = ()
    #: Where the next step ends, when a worker that died had paid for it already.
    paid_position: int | None = None

    @property
    def spec(self) -> PrismSpec:
        """How the memory is kept."""
        return self.held.spec

    def moved(self, new: NewRevision, memory: PrismMemory) -> "State":
        """The state after the next revision, which is `new`."""
        position = new.to_position
        held = replace(
            self.held,
            revision=self.held.revision + 1,
            applied_position=position,
            attempts=0 if position > self.held.applied_position else self.held.attempts,
        )
        if new.consolidated_tokens is not None:
            wanted = held.consolidate_position
            held = replace(
                held,
                attempts=0,
                consolidated_tokens=new.consolidated_tokens,
                consolidate_position=wanted if (wanted or 0) > position else None,
            )
        pending = tuple(one for one in self.pending if one.position > position)
        return replace(self, held=held, memory=memory, pending=pending, paid_position=None)


def next_group(state: State) -> tuple[Sequence[SizedChunk], bool]:
    """The chunks of the next step, and whether it could not take another one.

    A step that was paid for, by a worker that died before the commit, is made again
    with the same chunks, though more have come since: then its reply is in the journal.
    """
    paid = [one for one in state.pending if one.position <= (state.paid_position or 0)]
    if paid and paid[-1].position == state.paid_position:
        return paid, True
    limit = pacing.group_tokens(state.spec, state.memory, state.bounds)
    group, full = pacing.read_group(state.pending[:MAX_STEP_CHUNKS], limit)
    return group, full or len(group) == MAX_STEP_CHUNKS


def no_room(state: State) -> FailedPrecondition:
    """Why nothing can be read any more."""
    bounds = state.bounds
    return FailedPrecondition(
        Reason.MEMORY_STALLED,
        f"the memory ({state.memory.shown_tokens} tokens), the task ({bounds.task_tokens}) and a"
        f" reply ({bounds.step_output_tokens}) leave no room for text in the model's window of"
        f" {bounds.window_tokens} tokens, and consolidation does not make the memory smaller",
    )
