"""Workers that are killed, and a model that fails now and then."""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from types import ModuleType
from typing import Any

import pytest
from hypothesis import strategies as st

from service.domain.prompting.flows import ModelRequest
from service.llm.providers.failures import ModelFailure
from service.llm.providers.plans import CallPlan
from service.llm.providers.transport import Completion
from tests.integration.support.scripted import Script


class Killed(BaseException):
    """Ends a worker as SIGKILL ends a process."""


@dataclass(frozen=True)
class Crash:
    """Where a worker is killed."""

    #: "before", "within" or "behind" its `at`-th commit, or "waiting": of so many times.
    where: str
    at: int


def crashes(least_waits: int, most_waits: int) -> st.SearchStrategy[Crash | None]:
    """Crashes of every kind, and none."""
    return (
        st.none()
        | st.builds(Crash, st.sampled_from(["before", "within", "behind"]), st.integers(1, 3))
        | st.builds(Crash, st.just("waiting"), st.integers(least_waits, most_waits))
    )


@dataclass
class FailingScript(Script):
    """Fails now and then."""

    #: Of its calls, from 1, those that fail.
    failing: frozenset[int] = frozenset()
    calls: int = 0
    #: The asks that were answered, which is what is paid.
    paid: list[ModelRequest] = field(default_factory=list)

    async def complete(self, ask: ModelRequest, model: str, plan: CallPlan) -> Completion:
        self.calls += 1
        if self.calls in self.failing:
            raise ModelFailure("busy", retryable=True)
        done = await super().complete(ask, model, plan)
        self.paid.append(ask)
        return done


@contextmanager
def dying_at_commits(crash: Crash, storage: ModuleType) -> Iterator[pytest.MonkeyPatch]:
    """Kills the worker before or within a commit of a revision by this module's `commit`.

    The caller patches what happens after it with the MonkeyPatch, as long as this is open.
    """
    commit: Callable[..., Awaitable[bool]] = storage.commit
    numbers = count(1)

    async def killing(*arguments: Any, **named: Any) -> bool:
        at = next(numbers)
        if crash.where == "before" and at == crash.at:
            raise Killed
        has_work = await commit(*arguments, **named)
        if crash.where == "within" and at == crash.at:
            raise Killed
        return has_work

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(storage, "commit", killing)
        yield patched
