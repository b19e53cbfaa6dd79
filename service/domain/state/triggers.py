"""Decides how many of the recent steps are compressed next, if any.

A pure function of the log and of the vectors in use, but for a session that is idle now: so a
worker that reads a log again, after a crash or into another memory, cuts it at the same steps.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from service.domain.log.chunks import LoggedChunk
from service.domain.prompting.tokens import estimate_tokens
from service.domain.state.spec import ADAPTIVE_SPAN, Period, StateSpec

#: An adaptive memory compresses steps that have as much new in them as so many state
#: vectors can hold.
NEW_VECTORS = 2

_WORD = re.compile(r"\w+")


@dataclass(frozen=True, kw_only=True, slots=True)
class SizedStep:
    """A step: a chunk of the log, with its text and size."""

    logged: LoggedChunk
    #: As a model reads it.
    text: str
    #: By `estimate_tokens`, wherever it is counted: borders must not depend on a model.
    tokens: int

    @classmethod
    def of(cls, logged: LoggedChunk) -> "SizedStep":
        """Makes a step from a chunk of the log."""
        text = logged.chunk.as_text()
        return cls(logged=logged, text=text, tokens=estimate_tokens(text))

    @property
    def position(self) -> int:
        """Its place in the log."""
        return self.logged.position


def due(
    spec: StateSpec,
    known: str,
    steps: Sequence[SizedStep],
    *,
    flush_position: int = 0,
    now: datetime | None = None,
) -> int | None:
    """Returns how many of the steps after the last compression are due; None: none yet.

    `known` is the text of the vectors in use; steps up to `flush_position` do not wait for
    more; `now` is the log's clock, where it may say that the session is idle.
    """
    idle = timedelta(milliseconds=spec.idle_ms)
    counting = _Counting(spec, known)
    for number, step in enumerate(steps, 1):
        if number > 1 and idle and _gap(steps[number - 2], step) >= idle:
            return number - 1
        if number > 1 and counting.would_pass(step):
            return number - 1
        if counting.is_full(step):
            return number
    if steps and idle and now is not None and now - steps[-1].logged.created_at >= idle:
        return len(steps)
    return sum(step.position <= flush_position for step in steps) or None


def least_due(spec: StateSpec) -> int:
    """Steps after the last compression that are due at the earliest, but for a flush and
    for a session that is idle."""
    if spec.period_tokens:
        return 1
    return _least(spec)


def _least(spec: StateSpec) -> int:
    return -(-spec.period // ADAPTIVE_SPAN) if spec.period_kind is Period.ADAPTIVE else spec.period


def _gap(before: SizedStep, after: SizedStep) -> timedelta:
    return after.logged.created_at - before.logged.created_at


class _Counting:
    """Counts steps until they are enough for a compression."""

    def __init__(self, spec: StateSpec, known: str) -> None:
        self._spec = spec
        self._is_adaptive = spec.period_kind is Period.ADAPTIVE
        self._least = _least(spec)
        self._words = _words(known) if self._is_adaptive else set[str]()
        self._steps = 0
        self._tokens = 0
        self._new_tokens = 0.0

    def would_pass(self, step: SizedStep) -> bool:
        """Returns whether the steps would have too many tokens with this one."""
        most = self._spec.period_tokens
        return bool(most) and self._tokens + step.tokens > most

    def is_full(self, step: SizedStep) -> bool:
        """Returns whether the steps are enough with this one."""
        spec = self._spec
        self._steps += 1
        self._tokens += step.tokens
        if self._steps >= spec.max_period:
            return True
        if spec.period_tokens and self._tokens >= spec.period_tokens:
            return True
        if not self._is_adaptive:
            return False
        self._new_tokens += step.tokens * self._novelty(step)
        return self._steps >= self._least and self._new_tokens >= NEW_VECTORS * spec.state_tokens

    def _novelty(self, step: SizedStep) -> float:
        """Returns the share of a step's words that no vector and no step before it has, 0 to 1."""
        words = _words(step.text)
        new = words - self._words
        self._words |= new
        return len(new) / len(words) if words else 0.0


def _words(text: str) -> set[str]:
    return {word.casefold() for word in _WORD.findall(text)}
