"""Levels: which vectors cover the log, against a plain model."""

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.domain.state.spec import StateSpec
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
from tests.unit.state.making import step, vector


class Session:
    """Makes vectors of `period` steps each, and episodes as soon as a level is full."""

    def __init__(self, episode_vectors: int, period: int = 10) -> None:
        self.state = first_state(StateSpec(task="Find it."))
        self.vectors: dict[int, StateVector] = {TASK_REVISION: self.state.current}
        self._most = episode_vectors
        self._period = period

    def compress(self) -> None:
        begin = self.state.applied_position
        current = self.state.current
        after = begin if current.revision == TASK_REVISION else current.after_position
        number = self.state.revision + 1
        made = vector(number, f"v{number}", begin=begin, end=begin + self._period)
        levels = self.state.levels.with_steps(number, episode_vectors=self._most)
        self._move(replace(made, after_position=after), levels, made.to_position)
        while (full := self.state.levels.full_level(self._most)) is not None:
            self._episode(full)

    def _episode(self, full: int) -> None:
        number = self.state.revision + 1
        children = [self.vectors[one] for one in self.state.levels.run(full)]
        above = self.state.levels.run(full + 1)
        begin = children[0].from_position
        made = vector(
            number, f"e{number}", level=full + 1, begin=begin, end=children[-1].to_position
        )
        after = self.vectors[above[-1]].after_position if above else begin
        levels = self.state.levels.with_episode(number, full + 1)
        self._move(replace(made, after_position=after), levels, self.state.applied_position)

    def _move(self, made: StateVector, levels: VectorLevels, applied_position: int) -> None:
        self.vectors[made.revision] = made
        self.state = State.of(made.revision, applied_position, levels, self.vectors)


def test_a_memory_begins_with_the_task_prompt() -> None:
    state = first_state(StateSpec(task="Find it."))
    assert (state.revision, state.applied_position, state.levels) == (0, 0, VectorLevels())
    assert state.current == StateVector(
        revision=0, level=STEPS_LEVEL, text="Find it.", tokens=2, made=VectorSource.TASK
    )
    assert first_state(StateSpec()).current.text == ""


def test_without_episodes_the_newest_vector_stands_for_all() -> None:
    session = Session(0)
    for number in range(1, 51):
        session.compress()
        assert session.state.levels == VectorLevels(((number,),))
        assert session.state.levels.stack() == (number,)
        assert (session.state.current.after_position, session.state.current.to_position) == (
            0,
            10 * number,
        )
    assert session.state.levels.full_level(0) is None


def test_the_first_episodes_of_two() -> None:
    session = Session(2)
    stacks: list[tuple[str, ...]] = []
    for _ in range(5):
        session.compress()
        stacks.append(tuple(one.text for one in session.state.stack))
    assert stacks == [
        ("v1",),
        # The level begins anew after an episode: M is the task prompt.
        ("e3", "Find it."),
        ("e3", "v4"),
        ("e7", "Find it."),
        ("e7", "v8"),
    ]
    assert session.state.levels.runs == ((8,), (), (7,))


@pytest.mark.parametrize("most", [2, 3, 4, 64])
def test_levels_count_like_a_number_to_the_base_k(most: int) -> None:
    """A level holds what a digit says: how many vectors it made since it began."""
    session = Session(most)
    for number in range(1, 51):
        session.compress()
        digits = []
        left = number
        while left:
            digits.append(left % most)
            left //= most
        assert [len(run) for run in session.state.levels.runs] == digits


@given(most=st.integers(2, 6), count=st.integers(1, 60), period=st.integers(1, 3))
def test_a_stack_covers_what_was_compressed_without_a_hole(
    most: int, count: int, period: int
) -> None:
    session = Session(most, period)
    for _ in range(count):
        session.compress()
        state = session.state
        levels = [one.level for one in state.stack]
        assert levels == sorted(set(levels), reverse=True)
        assert levels[-1] == STEPS_LEVEL
        end = 0
        for one in state.stack:
            if one.made is not VectorSource.TASK:
                assert one.after_position == end
                assert one.after_position <= one.from_position < one.to_position
                end = one.to_position
        assert end == state.applied_position
        assert len(state.stack) <= 2 + math.log(state.applied_position // period, most)


@given(most=st.integers(2, 6), count=st.integers(0, 60))
def test_levels_are_the_same_behind_json(most: int, count: int) -> None:
    session = Session(most)
    for _ in range(count):
        session.compress()
    levels = session.state.levels
    assert VectorLevels.from_json(json.loads(json.dumps(levels.to_json()))) == levels


def test_the_lowest_full_level_is_first() -> None:
    levels = VectorLevels(((1, 2), (3, 4)))
    assert levels.full_level(2) == 1
    assert levels.full_level(3) is None
    behind = levels.with_episode(9, 2)
    assert behind.runs == ((), (3, 4, 9))
    assert behind.full_level(2) == 2
    assert behind.with_episode(10, 3).runs == ((), (), (10,))
    assert (levels.run(1), levels.run(2), levels.run(3)) == ((1, 2), (3, 4), ())


def test_a_digest_is_of_the_texts_and_their_levels() -> None:
    session = Session(2)
    digests = {session.state.digest}
    for _ in range(6):
        session.compress()
        digests.add(session.state.digest)
    assert len(digests) == 7
    again = State.of(99, 5, session.state.levels, session.vectors)
    assert again.digest == session.state.digest
    assert len(again.digest) == 32


def test_a_vector_of_another_level_is_another_state() -> None:
    low = State(revision=1, applied_position=1, levels=VectorLevels(), stack=(vector(1, "a"),))
    assert replace(low, stack=(vector(1, "a", level=2),)).digest != low.digest


def test_a_working_context_ends_with_the_last_step() -> None:
    session = Session(0)
    session.compress()
    context = WorkingContext(state=session.state, recent=[])
    assert (context.head, context.memory_tokens, context.recent_tokens) == (10, 1, 0)
    context = WorkingContext(state=session.state, recent=[step(11, "abcd"), step(12, "abcde")])
    assert (context.head, context.recent_tokens) == (12, 3)
