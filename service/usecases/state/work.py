"""Defines the work on a state memory: what a worker keeps of it, and what it compresses next."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Unpack

from service.domain.prompting.cutting import Cutter
from service.domain.prompting.fitting import PromptTerms
from service.domain.prompting.flows import Flow
from service.domain.state.compressing import (
    Compression,
    compress_steps,
    compress_vectors,
    stand_in,
)
from service.domain.state.spec import StateSpec
from service.domain.state.triggers import SizedStep, due, least_due
from service.domain.state.vectors import (
    STEPS_LEVEL,
    TASK_REVISION,
    State,
    StateVector,
    VectorLevels,
    VectorSource,
    first_state,
)
from service.domain.state.working_context import WorkingContext
from service.llm.providers.facts import ModelFacts
from storage.engine.claims import Claim
from storage.memories import revisions
from storage.memories.revisions import NewRevision


def idle_at(spec: StateSpec, context: WorkingContext) -> datetime | None:
    """Returns when the recent steps are compressed because no more have come; None: never."""
    if not spec.idle_ms or not context.recent:
        return None
    return context.recent[-1].logged.created_at + timedelta(milliseconds=spec.idle_ms)


def wake_position(spec: StateSpec, context: WorkingContext) -> int:
    """Returns the earliest position at which an append alone makes a compression due."""
    # The first of the steps begins the wait for a session that is idle.
    least = 1 if spec.idle_ms and not context.recent else least_due(spec)
    return context.state.applied_position + least


@dataclass(frozen=True, kw_only=True, slots=True)
class CompressionGroup:
    """What is compressed next into one vector: steps, or with episodes vectors of a level."""

    #: The revision that it makes.
    number: int
    #: The level of the new vector.
    level: int
    #: What is compressed together with it: M for steps, for an episode the vector in use of
    #: its own level. None where that level has none.
    before: StateVector | None
    #: The cursor: steps up to here are compressed already.
    cursor: int
    #: On level 1.
    steps: Sequence[SizedStep] = ()
    #: Above it: all that the level below has made since it began.
    vectors: Sequence[StateVector] = ()

    @property
    def occasion(self) -> str:
        """Returns the occasion of its calls."""
        if self.level == STEPS_LEVEL:
            return f"compress:{self.number}:{self.to_position}"
        return f"episode:{self.number}"

    @property
    def from_position(self) -> int:
        """Returns the position after which the vector has something new …"""
        return self.vectors[0].from_position if self.vectors else self.cursor

    @property
    def to_position(self) -> int:
        """Returns … up to this one."""
        return self.vectors[-1].to_position if self.vectors else self.steps[-1].position

    @property
    def cursor_after(self) -> int:
        """Returns the cursor of the revision that it makes."""
        return self.steps[-1].position if self.steps else self.cursor

    @property
    def _before_text(self) -> str:
        return "" if self.before is None else self.before.text

    def flow(self, spec: StateSpec, cut: Cutter, **terms: Unpack[PromptTerms]) -> Flow[Compression]:
        """Asks a model for the vector. Raises NoUse, NoRoom."""
        if self.level == STEPS_LEVEL:
            return compress_steps(self._before_text, self.steps, spec=spec, cut=cut, **terms)
        return compress_vectors(self._before_text, self.vectors, spec=spec, cut=cut, **terms)

    def skipped(self, spec: StateSpec, count: Callable[[str], int]) -> Compression:
        """Returns the stand-in for a vector that no model gives."""
        # The newest vector of a level stands for the whole level already.
        texts = [step.text for step in self.steps] or [self.vectors[-1].text]
        return stand_in(self._before_text, texts, spec=spec, count=count)

    def kind(self, made: VectorSource) -> str:
        """Returns the kind of its revision, by the source of the vector."""
        # An episode reads no step, so it can skip none.
        if self.level > STEPS_LEVEL:
            return "episode"
        return "skip" if made is VectorSource.SKIPPED else "step"

    def vector(self, done: Compression) -> StateVector:
        """Returns the vector of the revision."""
        before = self.before
        if before is None or before.revision == TASK_REVISION:
            after_position = self.from_position
        else:
            after_position = before.after_position
        return StateVector(
            revision=self.number,
            level=self.level,
            text=done.text,
            tokens=done.tokens,
            made=done.made,
            after_position=after_position,
            from_position=self.from_position,
            to_position=self.to_position,
            children=tuple(one.revision for one in self.vectors),
            replies=done.replies,
            appended=done.appended,
        )

    def levels(self, levels: VectorLevels, spec: StateSpec) -> VectorLevels:
        """Returns the vectors in use after its revision."""
        if self.level == STEPS_LEVEL:
            return levels.with_steps(self.number, episode_vectors=spec.episode_vectors)
        return levels.with_episode(self.number, self.level)


@dataclass(frozen=True, kw_only=True, slots=True)
class StateWork:
    """What this worker keeps of a claimed state memory."""

    held: Claim
    state: State
    #: What is known about the model that is asked.
    facts: ModelFacts
    #: Steps after the cursor that were read already.
    steps: Sequence[SizedStep] = ()

    @property
    def spec(self) -> StateSpec:
        """Returns how the memory is kept."""
        return StateSpec.of(self.held)

    @property
    def read_position(self) -> int:
        """Returns the position up to which all steps are compressed, or in `steps`."""
        return self.context.head

    @property
    def full_level(self) -> int | None:
        """Returns the level whose vectors are to be compressed before more steps; None: none is."""
        return self.state.levels.full_level(self.spec.episode_vectors)

    def due_anyway(self) -> int | None:
        """Returns how many steps are due whatever follows in the log; None: not known yet."""
        paid = self.held.paid_position
        if paid is not None and self.read_position >= paid:
            return sum(step.position <= paid for step in self.steps)
        return due(self.spec, self.context.known, self.steps)

    def due_at_head(self, now: datetime | None) -> int | None:
        """Returns how many steps are due if the log has no more than these; None: none yet."""
        flush_position = self.held.flush_position
        return due(
            self.spec, self.context.known, self.steps, flush_position=flush_position, now=now
        )

    @property
    def context(self) -> WorkingContext:
        """Returns what is in use, as far as the log was read."""
        return WorkingContext(state=self.state, recent=self.steps)

    def next_steps(self, number: int) -> CompressionGroup:
        """Groups the first of the steps that were read, for the next vector of steps."""
        return CompressionGroup(
            number=self.held.revision + 1,
            level=STEPS_LEVEL,
            before=self.state.current,
            cursor=self.held.applied_position,
            steps=self.steps[:number],
        )

    def next_episode(self, level: int, vectors: Sequence[StateVector]) -> CompressionGroup:
        """Groups the vectors of a full level, for the next one above it."""
        above = [one for one in self.state.stack if one.level == level + 1]
        return CompressionGroup(
            number=self.held.revision + 1,
            level=level + 1,
            before=above[0] if above else None,
            cursor=self.held.applied_position,
            vectors=vectors,
        )

    def state_after(self, group: CompressionGroup, vector: StateVector) -> State:
        """Returns the vectors in use after the revision that `group` makes."""
        (task,) = first_state(self.spec).stack
        return State.of(
            group.number,
            group.cursor_after,
            group.levels(self.state.levels, self.spec),
            {one.revision: one for one in (task, *self.state.stack, vector)},
        )

    def moved(self, new: NewRevision, state: State) -> "StateWork":
        """Returns the work after the next revision, which is `new` and made `state`."""
        steps = tuple(step for step in self.steps if step.position > state.applied_position)
        return replace(self, held=revisions.advanced(self.held, new), state=state, steps=steps)
