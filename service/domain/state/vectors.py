"""State vectors, and which of them stand for the log at a revision.

Level 1 is algorithm 1: M_new = F(M + R), steps into a vector. With episodes the same goes
on above it: when a level has made K vectors since it began, they and the vector of the
level above are compressed into the next vector there, and the level begins anew. So at any
revision one vector of each level is in use, from the highest down to M, and they cover the
steps that were compressed one after the other, without a hole and without an overlap.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from service.domain.prompting.tokens import estimate_tokens
from service.domain.search.entries import EntryChanges, WrittenEntry, text_entries
from service.domain.state.spec import StateSpec
from service.domain.values.json_values import Json, canonical

#: The level whose vectors are made from steps.
STEPS_LEVEL = 1
#: The revision of M_1, the task prompt, which stands for M where level 1 begins anew.
TASK_REVISION = 0


class VectorSource(StrEnum):
    """Where a state vector comes from."""

    #: It is the task prompt, M_1.
    TASK = "task"
    #: The model wrote it.
    MODEL = "model"
    #: The model wrote it and it stayed too long: it was cut at a sentence.
    CUT = "cut"
    #: The model failed for good: what it had to compress is stood for by its beginning.
    SKIPPED = "skipped"


@dataclass(frozen=True, kw_only=True, slots=True)
class StateVector:
    """A state vector. It never changes."""

    #: The revision that made it; 0 for the task prompt.
    revision: int
    #: 1 for a vector of steps; an episode is one above its children.
    level: int
    text: str
    #: Tokens of its text, by the tokenizer of the model that made it.
    tokens: int
    made: VectorSource
    #: It stands for the positions after this one, since its level began anew …
    after_position: int = 0
    #: … and what is new in it is the positions from_position + 1 to to_position.
    from_position: int = 0
    to_position: int = 0
    #: Revisions of the vectors of the level below that it was made from; none on level 1.
    children: tuple[int, ...] = ()
    #: Replies that it took; 0 for what no model wrote.
    replies: int = 0
    #: Pinned strings that the model had dropped, which were put after its text.
    appended: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class VectorLevels:
    """The vectors that are in use at a revision, by their revisions.

    `runs` has for each level, from 1 up, what was made since the level began, oldest
    first. Without episodes only the newest of level 1 is kept in mind.
    """

    runs: tuple[tuple[int, ...], ...] = ((),)

    def stack(self) -> tuple[int, ...]:
        """Returns one of each level that has any, the highest first; the last one is M."""
        upper = [run[-1] for run in reversed(self.runs[1:]) if run]
        return (*upper, self.runs[0][-1] if self.runs[0] else TASK_REVISION)

    def run(self, level: int) -> tuple[int, ...]:
        """Returns what a level has made since it began."""
        return self.runs[level - 1] if level <= len(self.runs) else ()

    def with_steps(self, revision: int, *, episode_vectors: int) -> "VectorLevels":
        """Returns the levels after a new vector of steps."""
        run = (*self.runs[0], revision) if episode_vectors else (revision,)
        return VectorLevels((run, *self.runs[1:]))

    def full_level(self, episode_vectors: int) -> int | None:
        """Returns the lowest level whose vectors are to be compressed; None when there is none."""
        if not episode_vectors:
            return None
        full = (number for number, run in enumerate(self.runs, 1) if len(run) >= episode_vectors)
        return next(full, None)

    def with_episode(self, revision: int, level: int) -> "VectorLevels":
        """Returns the levels after a vector of `level`, made from all that the level below had."""
        runs = [*self.runs, *[()] * (level - len(self.runs))]
        runs[level - 2] = ()
        runs[level - 1] = (*runs[level - 1], revision)
        return VectorLevels(tuple(runs))

    def to_json(self) -> list[list[int]]:
        """Returns the levels as plain JSON."""
        return [list(run) for run in self.runs]

    @classmethod
    def from_json(cls, value: Sequence[Sequence[int]]) -> "VectorLevels":
        """Returns the levels from `to_json`."""
        return cls(tuple(tuple(run) for run in value))


@dataclass(frozen=True, kw_only=True, slots=True)
class State:
    """The vectors that stand for the log at a revision."""

    revision: int
    #: All steps up to here are compressed; what comes after is recent.
    applied_position: int
    levels: VectorLevels
    #: As `VectorLevels.stack` has them: the highest level first, M last.
    stack: tuple[StateVector, ...]

    @property
    def current(self) -> StateVector:
        """M."""
        return self.stack[-1]

    @property
    def digest(self) -> bytes:
        """SHA-256 of the vectors in use, 32 bytes."""
        held: list[Json] = [[vector.level, vector.text] for vector in self.stack]
        return hashlib.sha256(canonical(held).encode()).digest()

    @classmethod
    def of(
        cls,
        revision: int,
        applied_position: int,
        levels: VectorLevels,
        vectors: Mapping[int, StateVector],
    ) -> "State":
        """Makes the state from vectors by their revisions; others among them do not count."""
        return cls(
            revision=revision,
            applied_position=applied_position,
            levels=levels,
            stack=tuple(vectors[one] for one in levels.stack()),
        )


def state_entries(state: State) -> Iterator[WrittenEntry]:
    """Yields what searches find of a state: the vectors in use, without the task prompt."""
    for vector in state.stack:
        if vector.made is VectorSource.TASK:
            continue
        for one in text_entries(f"{vector.level}.{vector.revision}", vector.text):
            yield WrittenEntry(
                entry=one,
                revision=vector.revision,
                first_position=vector.after_position + 1,
                last_position=vector.to_position,
            )


def entry_changes(before: State, after: State) -> EntryChanges:
    """Returns what changes in the entries from one state to another. Vectors never change."""
    old = {one.entry.entry_id for one in state_entries(before)}
    new = {one.entry.entry_id: one for one in state_entries(after)}
    return EntryChanges(
        written=[one for key, one in new.items() if key not in old],
        dropped=[key for key in old if key not in new],
    )


def first_state(spec: StateSpec) -> State:
    """Returns the state at revision 0: M_1 is the task prompt, and nothing is compressed."""
    task = StateVector(
        revision=TASK_REVISION,
        level=STEPS_LEVEL,
        text=spec.task,
        tokens=estimate_tokens(spec.task),
        made=VectorSource.TASK,
    )
    return State(revision=0, applied_position=0, levels=VectorLevels(), stack=(task,))
