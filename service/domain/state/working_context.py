"""The working context: the vectors in use and the steps since, M + R (section 3.1)."""

from collections.abc import Sequence
from dataclasses import dataclass

from service.domain.state.triggers import SizedStep
from service.domain.state.vectors import State


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkingContext:
    """What an agent reads before a step. Every chunk of the log is in it exactly once."""

    state: State
    #: All that is not compressed, in the order of the log: the positions behind
    #: `state.applied_position`.
    recent: Sequence[SizedStep]

    @property
    def head(self) -> int:
        """The last position that is in it."""
        return self.recent[-1].position if self.recent else self.state.applied_position

    @property
    def memory_tokens(self) -> int:
        """Of the vectors, as their models count."""
        return sum(vector.tokens for vector in self.state.stack)

    @property
    def recent_tokens(self) -> int:
        """Of the recent steps, by `estimate_tokens`."""
        return sum(step.tokens for step in self.recent)
