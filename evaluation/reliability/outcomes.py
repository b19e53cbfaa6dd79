"""Results of games: success by length, tokens per success, the reasoning horizon."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from evaluation.reliability.playing import Spent

#: The horizon is the last length before success drops below this share of the games.
HORIZON_RATE = 0.5


@dataclass(frozen=True, kw_only=True, slots=True)
class GameResult:
    """A task, played with a strategy."""

    strategy: str
    length: int
    #: Which of the tasks of its length; from 1.
    number: int
    gold: str
    #: Empty where it failed.
    answer: str = ""
    is_right: bool = False
    #: Why it could not be played to its end, in a sentence; empty when it was.
    failure: str = ""
    #: What the agent's own calls cost, and those that keep the history for it.
    acting: Spent = field(default_factory=Spent)
    keeping: Spent = field(default_factory=Spent)
    #: Tokens of the longest context.
    longest: int = 0
    seconds: float = 0.0

    @property
    def tokens(self) -> int:
        """Returns the tokens of all prompts and replies."""
        return self.acting.tokens + self.keeping.tokens


@dataclass(frozen=True, kw_only=True, slots=True)
class LengthSummary:
    """A strategy at one length. Games that failed count as lost; their tokens are not known."""

    length: int
    games: int
    failed: int
    right: int
    #: From 0 to 1.
    success_rate: float
    #: The mean of the games that did not fail; None when all failed.
    tokens_per_task: float | None
    #: All tokens to the games that succeeded; None when none did.
    tokens_per_success: float | None
    #: Tokens of the longest context of any game.
    longest_context: int


@dataclass(frozen=True, kw_only=True, slots=True)
class StrategySummary:
    """A strategy over all lengths."""

    strategy: str
    #: The last length before the first at which fewer than HORIZON_RATE of the games succeed
    #: (PCC, section 4.1); 0: none.
    horizon: int
    #: Shortest first.
    lengths: tuple[LengthSummary, ...]


def summarize(strategies: Sequence[str], results: Collection[GameResult]) -> list[StrategySummary]:
    """Returns a summary of each strategy that has results, in the order of `strategies`."""
    return [
        _strategy(name, mine)
        for name in strategies
        if (mine := [one for one in results if one.strategy == name])
    ]


def _strategy(name: str, mine: Sequence[GameResult]) -> StrategySummary:
    lengths = tuple(
        _length(length, [one for one in mine if one.length == length])
        for length in sorted({one.length for one in mine})
    )
    reached = list(takewhile(lambda one: one.success_rate >= HORIZON_RATE, lengths))
    horizon = reached[-1].length if reached else 0
    return StrategySummary(strategy=name, horizon=horizon, lengths=lengths)


def _length(length: int, games: Sequence[GameResult]) -> LengthSummary:
    done = [one for one in games if not one.failure]
    right = sum(one.is_right for one in done)
    tokens = sum(one.tokens for one in done)
    return LengthSummary(
        length=length,
        games=len(games),
        failed=len(games) - len(done),
        right=right,
        success_rate=right / len(games),
        tokens_per_task=tokens / len(done) if done else None,
        tokens_per_success=tokens / right if right else None,
        longest_context=max((one.longest for one in done), default=0),
    )
