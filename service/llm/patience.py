"""Patience: models that do not reply hold a part of a worker's places, and never all of them.

A model that has replied to none of the calls that wait for it for a while counts as silent,
until it replies. What is in hand and waits for silent models beyond their places is let go:
its calls go on with the caller, and their replies are stored for whoever takes it next.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import structlog
from opentelemetry import metrics

from service.llm.transport import ModelFailure

_log = structlog.get_logger("palimpsest.llm")

#: How often somebody is to look for models that are silent.
LOOK_SECONDS = 1.0
#: What is let go comes back after as long as its model has been silent, within these; by
#: chance up to a half sooner, so that not all come at once.
MIN_WAIT_SECONDS = 5.0
MAX_WAIT_SECONDS = 60.0
#: Models that are remembered.
MAX_MODELS = 1000


class _InHand:
    """Something that is worked on."""

    def __init__(self) -> None:
        self.task: asyncio.Task[None] | None = None
        #: Its calls that wait, by model.
        self.waits: dict[str, int] = {}
        #: Seconds after which it comes back; None while it may go on.
        self.back_seconds: float | None = None


@dataclass(slots=True)
class _Model:
    #: When each of the calls that wait began, in the loop's time.
    began: dict[object, float] = field(default_factory=dict)
    #: When it replied last, or was asked for the first time.
    heard_at: float = 0.0
    #: Since when it has not replied; None while it replies.
    silent_since: float | None = None

    def waited_since(self) -> float | None:
        """Since when somebody waits and nothing was heard; None when nobody waits."""
        return max(self.heard_at, min(self.began.values())) if self.began else None


_in_hand: ContextVar[_InHand | None] = ContextVar("palimpsest_in_hand", default=None)


class Patience:
    """Of one worker process. What is run by it has a place, whatever it calls."""

    def __init__(
        self, *, silent_seconds: float, places: int, clock: Callable[[], float] | None = None
    ) -> None:
        """At most `places`, 1 or more, of what is in hand wait for silent models."""
        self._silent_seconds = silent_seconds
        self._places = places
        self._clock = clock
        self._models: dict[str, _Model] = {}
        #: What is in hand, the oldest first.
        self._held: dict[_InHand, None] = {}
        self._let_go = metrics.get_meter("palimpsest.llm").create_counter(
            "palimpsest.llm.let_go", description="Work that was let go since its model is silent"
        )

    async def run(self, work: Coroutine[Any, Any, None]) -> float | None:
        """Does the work; the seconds after which it is to be taken up again when it is let go."""
        held = _InHand()

        async def within() -> None:
            _in_hand.set(held)
            await work

        held.task = asyncio.create_task(within())
        self._held[held] = None
        try:
            await held.task
        except asyncio.CancelledError:
            current = asyncio.current_task()
            # Of the worker, or of the work alone.
            if held.back_seconds is None or (current is not None and current.cancelling()):
                raise
            return held.back_seconds
        finally:
            del self._held[held]
        return None

    @asynccontextmanager
    async def waiting(self, model: str) -> AsyncIterator[None]:
        """Surrounds a call; what has no place for a silent model does not get to make it."""
        held = _in_hand.get()
        if held is None:
            yield
            return
        known = self._known(model)
        if known.silent_since is not None and not self._has_place(held):
            self._release(held, known.silent_since)
        if held.back_seconds is not None:
            # Until its work is cancelled, which this is a part of.
            await asyncio.Future()
        call = object()
        known.began[call] = self._now()
        held.waits[model] = held.waits.get(model, 0) + 1
        try:
            yield
            self._heard(model, known)
        except ModelFailure as failure:
            if not failure.retryable:
                # A refusal is a reply as well.
                self._heard(model, known)
            raise
        finally:
            del known.began[call]
            held.waits[model] -= 1
            if not held.waits[model]:
                del held.waits[model]

    async def look(self) -> None:
        """Notes who is silent, and lets go what has no place; the youngest first."""
        now = self._now()
        for name, model in self._models.items():
            since = model.waited_since()
            if model.silent_since is not None or since is None:
                continue
            if now - since >= self._silent_seconds:
                model.silent_since = since
                _log.warning("model is silent", model=name, calls=len(model.began))
        waiting = [(one, self._silent_since(one)) for one in self._held]
        silent = [(one, since) for one, since in waiting if since is not None]
        for held, since in silent[self._places :]:
            self._release(held, since)

    def _has_place(self, held: _InHand) -> bool:
        waiting = [one for one in self._held if self._silent_since(one) is not None]
        return held in waiting or len(waiting) < self._places

    def _silent_since(self, held: _InHand) -> float | None:
        """Since when the models are silent that it waits for; None when it waits for none."""
        if held.back_seconds is not None:
            return None
        found = (self._models[name].silent_since for name in held.waits)
        return min((since for since in found if since is not None), default=None)

    def _release(self, held: _InHand, since: float) -> None:
        assert held.task is not None, "it runs"
        silent = self._now() - since
        wait = min(max(silent, MIN_WAIT_SECONDS), MAX_WAIT_SECONDS)
        held.back_seconds = wait * random.uniform(0.5, 1.0)
        held.task.cancel()
        self._let_go.add(1)

    def _heard(self, name: str, model: _Model) -> None:
        model.heard_at = self._now()
        if model.silent_since is not None:
            model.silent_since = None
            _log.info("model replies again", model=name)

    def _known(self, name: str) -> _Model:
        model = self._models.get(name)
        if model is None:
            model = self._models[name] = _Model(heard_at=self._now())
            if len(self._models) > MAX_MODELS:
                self._forget_one(name)
        return model

    def _forget_one(self, but: str) -> None:
        idle = (name for name, one in self._models.items() if name != but and not one.began)
        oldest = next(idle, None)
        if oldest is not None:
            del self._models[oldest]

    def _now(self) -> float:
        return self._clock() if self._clock else asyncio.get_running_loop().time()
