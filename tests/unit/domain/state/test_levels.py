"""Levels: at any revision the vectors in use cover what was compressed once, in order."""

import math

from hypothesis import given
from hypothesis import strategies as st

from service.domain.state.vectors import TASK_REVISION, Levels


class Grown:
    """A memory that compresses `period` steps at a time, and episodes as soon as they are due."""

    def __init__(self, episode_vectors: int) -> None:
        self.episode_vectors = episode_vectors
        self.levels = Levels()
        #: By revision: the steps that a vector stands for, from the first to the last.
        self.covered: dict[int, range] = {}
        self.revision = 0

    def steps(self, covered: range) -> None:
        """The next steps become a vector; M, where level 1 has one, is within it."""
        current = self.levels.stack()[-1]
        begin = covered.start
        if current != TASK_REVISION:
            begin = self.covered[current].start
        self._commit(range(begin, covered.stop))
        self.levels = self.levels.with_steps(self.revision, episode_vectors=self.episode_vectors)

    def episode(self) -> bool:
        """The lowest level that is full goes up; False when none is."""
        full = self.levels.full_level(self.episode_vectors)
        if full is None:
            return False
        children, above = self.levels.run(full), self.levels.run(full + 1)
        # The newest of a run stands for all that its level has since it began.
        begin = self.covered[(above or children)[-1]].start
        self._commit(range(begin, self.covered[children[-1]].stop))
        self.levels = self.levels.with_episode(self.revision, full + 1)
        return True

    def _commit(self, covered: range) -> None:
        self.revision += 1
        self.covered[self.revision] = covered


@given(
    periods=st.lists(st.integers(1, 7), max_size=60),
    episode_vectors=st.sampled_from([0, 2, 3, 5]),
)
def test_the_vectors_in_use_partition_the_past(periods: list[int], episode_vectors: int) -> None:
    memory = Grown(episode_vectors)
    head = 0
    for period in periods:
        memory.steps(range(head, head + period))
        head += period
        while True:
            used = [memory.covered[one] for one in memory.levels.stack() if one != TASK_REVISION]
            assert [step for covered in used for step in covered] == list(range(head))
            if not memory.episode():
                break


@given(vectors=st.integers(1, 400), episode_vectors=st.integers(2, 6))
def test_there_are_as_many_vectors_as_the_logarithm_says(
    vectors: int, episode_vectors: int
) -> None:
    memory = Grown(episode_vectors)
    for step in range(vectors):
        memory.steps(range(step, step + 1))
        while memory.episode():
            pass
    used = [one for one in memory.levels.stack() if one != TASK_REVISION]
    assert len(used) <= math.floor(math.log(vectors, episode_vectors) + 1e-9) + 1
