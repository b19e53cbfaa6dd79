"""Bulkhead: limits how many worker slots unresponsive models can occupy.

A model is unresponsive while it has replied to none of its waiting calls for some time. Jobs that
wait for unresponsive models beyond their slots are released: the executor completes their calls and
stores the replies for the next worker.

A worker with one slot cannot keep any free: there unresponsive models take turns with other work.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import structlog
from opentelemetry import metrics

from service.llm.providers.failures import ModelFailure
from service.telemetry.names import Metric

_log = structlog.get_logger("palimpsest.llm")

#: How often to look for unresponsive models.
LOOK_SECONDS = 1.0
#: A released job is retried after as long as its model has been unresponsive, within these
#: limits; at random up to a half sooner, so that not all are retried at once.
MIN_WAIT_SECONDS = 5.0
MAX_WAIT_SECONDS = 60.0
#: Models that are remembered.
MAX_MODELS = 1000


class _InHand:
    """A job in progress."""

    def __init__(self) -> None:
        self.task: asyncio.Task[float | None] | None = None
        #: Its calls that wait, by model.
        self.waits: dict[str, int] = {}
        #: Since when it has waited without a pause, in the loop's time.
        self.waited_at = 0.0
        #: Seconds after which it is retried; None while it may go on.
        self.back_seconds: float | None = None


@dataclass(slots=True)
class _Model:
    #: When each of the calls that wait began, in the loop's time.
    began: dict[object, float] = field(default_factory=dict)
    #: When it replied last, or was first called.
    heard_at: float = 0.0
    #: Since when it has not replied; None while it replies.
    unresponsive_since: float | None = None
    #: Until when no call waits for it while it is unresponsive, as it has had its turn.
    turn_at: float = 0.0

    def waited_since(self) -> float | None:
        """Returns since when calls have waited without any reply; None when no call waits."""
        return max(self.heard_at, min(self.began.values())) if self.began else None


_in_hand: ContextVar[_InHand | None] = ContextVar("palimpsest_in_hand", default=None)


class Bulkhead:
    """Limits how many slots of one worker process unresponsive models can occupy."""

    def __init__(
        self,
        *,
        silent_seconds: float,
        slots: int,
        concurrency: int,
        clock: Callable[[], float] | None = None,
    ) -> None:
        """Lets at most `slots` of the `concurrency` jobs wait for unresponsive models.

        At least one may wait and, if `concurrency` is more than 1, not all of them.
        """
        self._silent_seconds = silent_seconds
        self._slots = max(min(slots, concurrency - 1), 1)
        #: Whether unresponsive models could occupy all slots.
        self._takes_turns = concurrency <= self._slots
        self._clock = clock
        self._models: dict[str, _Model] = {}
        #: Jobs in progress, the oldest first.
        self._held: dict[_InHand, None] = {}
        self._released = metrics.get_meter("palimpsest.llm").create_counter(
            Metric.LLM_LET_GO, description="Work that was released since its model is unresponsive"
        )

    async def run(
        self,
        work: Coroutine[Any, Any, float | None],
        *,
        release: Callable[[float], Awaitable[None]],
    ) -> float | None:
        """Returns the result of `work`; if it is released, calls `release` with the seconds until
        its next try, and returns these."""
        held = _InHand()

        async def within() -> float | None:
            _in_hand.set(held)
            return await work

        held.task = asyncio.create_task(within())
        self._held[held] = None
        try:
            return await held.task
        except asyncio.CancelledError:
            current = asyncio.current_task()
            # The worker was cancelled, not the job alone.
            if held.back_seconds is None or (current is not None and current.cancelling()):
                raise
            seconds = held.back_seconds
        finally:
            del self._held[held]
        await release(seconds)
        return seconds

    @asynccontextmanager
    async def waiting(self, model: str) -> AsyncIterator[None]:
        """Surrounds a call; cancels its job if there is no slot for an unresponsive model."""
        held = _in_hand.get()
        if held is None:
            yield
            return
        known = self._known(model)
        if known.unresponsive_since is not None and not self._may_wait(held, known):
            self._release(held, known.unresponsive_since)
        if held.back_seconds is not None:
            # Until its job is cancelled, which includes this call.
            await asyncio.Future()
        call = object()
        known.began[call] = self._now()
        if not held.waits:
            held.waited_at = self._now()
        held.waits[model] = held.waits.get(model, 0) + 1
        try:
            yield
            self._heard(model, known)
        except ModelFailure as failure:
            if not failure.retryable:
                # A refusal is a reply, too.
                self._heard(model, known)
            raise
        finally:
            del known.began[call]
            held.waits[model] -= 1
            if not held.waits[model]:
                del held.waits[model]

    async def look(self) -> None:
        """Finds unresponsive models, and releases jobs beyond their slots, the youngest first."""
        now = self._now()
        for name, model in self._models.items():
            since = model.waited_since()
            if model.unresponsive_since is not None or since is None:
                continue
            if now - since >= self._silent_seconds:
                model.unresponsive_since = since
                _log.warning("model is unresponsive", model=name, calls=len(model.began))
        waiting = [(one, self._unresponsive_since(one)) for one in self._held]
        unresponsive = [(one, since) for one, since in waiting if since is not None]
        for held, since in unresponsive[self._slots :]:
            self._release(held, since)
        if self._takes_turns:
            for held, since in unresponsive[: self._slots]:
                if now - held.waited_at >= self._silent_seconds:
                    self._end_turn(held, now)
                    self._release(held, since)

    def _end_turn(self, held: _InHand, now: float) -> None:
        """Lets no call wait for its unresponsive models until their first job is retried."""
        for name in held.waits:
            model = self._models[name]
            if model.unresponsive_since is not None:
                model.turn_at = now + _wait_seconds(now - model.unresponsive_since) / 2

    def _may_wait(self, held: _InHand, model: _Model) -> bool:
        """Returns whether a job may wait for an unresponsive model."""
        waiting = [one for one in self._held if self._unresponsive_since(one) is not None]
        if held in waiting:
            return True
        return len(waiting) < self._slots and self._now() >= model.turn_at

    def _unresponsive_since(self, held: _InHand) -> float | None:
        """Returns since when a model that it waits for is unresponsive; None if none is."""
        if held.back_seconds is not None:
            return None
        found = (self._models[name].unresponsive_since for name in held.waits)
        return min((since for since in found if since is not None), default=None)

    def _release(self, held: _InHand, since: float) -> None:
        assert held.task is not None, "it runs"
        held.back_seconds = _wait_seconds(self._now() - since) * random.uniform(0.5, 1.0)
        held.task.cancel()
        self._released.add(1)

    def _heard(self, name: str, model: _Model) -> None:
        model.heard_at = self._now()
        if model.unresponsive_since is not None:
            model.unresponsive_since = None
            model.turn_at = 0.0
            _log.info("model replies again", model=name)

    def _known(self, name: str) -> _Model:
        model = self._models.get(name)
        if model is None:
            model = self._models[name] = _Model(heard_at=self._now())
            if len(self._models) > MAX_MODELS:
                idle = (one for one in self._models if one != name and not self._models[one].began)
                self._models.pop(next(idle, ""), None)
        return model

    def _now(self) -> float:
        return self._clock() if self._clock else asyncio.get_running_loop().time()


def _wait_seconds(unresponsive: float) -> float:
    """Returns the longest pause of a job whose model has been unresponsive for so long."""
    return min(max(unresponsive, MIN_WAIT_SECONDS), MAX_WAIT_SECONDS)
