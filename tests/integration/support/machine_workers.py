"""Workers of state machines: a model that counts, fails and lies, and workers that die."""

import hashlib
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from service.domain.prompting.flows import ModelRequest
from service.domain.values.json_values import canonical
from service.domain.values.work_items import WorkItem
from service.llm.providers.facts import ModelFacts
from service.llm.providers.failures import ModelFailure
from service.llm.providers.plans import CallPlan
from service.llm.providers.transport import Completion
from service.settings.config import Config
from service.usecases.memories.step_engine import StepEngine
from storage.engine.database import Database
from tests.support.completions import completion
from tests.support.contents import ConsolidateContent, ReviseContent, content_of
from tests.support.gateways import SHORT_LEASE_SECONDS, gateway
from tests.support.step_engines import before_commits, step_engine
from verification.chaos.history import Event, ModelCalled

#: A step that fails is tried again at once, and stalls its memory soon.
CONFIG = Config(step_backoff_seconds=0.0001, step_tries=2, drain_seconds=600)
WINDOW_TOKENS = 20_000
#: What may become of a reply. "tired" may be asked again, "refused" may not.
FAULTS = ("tired", "refused", "cut", "broken", "alien", "empty")


class Killed(BaseException):
    """A worker died; nothing of it continues."""


@dataclass
class Model:
    """A model that says what it saw, with the serial of the call."""

    #: Where its calls are written down.
    events: list[Event]
    #: The times of events.
    times: Iterator[int]
    #: What becomes of the next replies.
    faults: list[str] = field(default_factory=list)
    _serials: Iterator[int] = field(default_factory=lambda: count(1))

    async def complete(self, ask: ModelRequest, model: str, plan: CallPlan) -> Completion:
        """Completes a prompt as a transport does."""
        serial, fault = next(self._serials), self.faults.pop(0) if self.faults else ""
        is_paid = fault not in ("tired", "refused")
        self.events.append(
            ModelCalled(
                serial=serial,
                prompt=hashlib.sha256(ask.text.encode()).hexdigest(),
                outcome=fault or "replied",
                is_paid=is_paid,
                at=float(next(self.times)),
            )
        )
        if not is_paid:
            raise ModelFailure("it is tired", retryable=fault == "tired")
        return completion(_spoilt(_reply(ask, serial), fault), model)


def _spoilt(text: str, fault: str) -> str:
    match fault:
        case "cut":
            return text[: len(text) * 2 // 3]
        case "broken":
            return text[:9] + '"{]'
        case "alien":
            # A path that the schema does not have, and a value of another type.
            return text.replace("$.topics", "$.planets").replace('{"add": "', '{"add": 7, "x": "')
        case "empty":
            return ""
    return text


def _reply(ask: ModelRequest, serial: int) -> str:
    match content_of(ask):
        case ReviseContent(texts=texts):
            added = [f'"$.topics.{text.split()[0]}": {{"add": "[s{serial}]"}}' for text in texts]
            return f"[s{serial}]\n[OBJECTS FOR ADD]\n{{{', '.join(added)}}}"
        case ConsolidateContent(value=value):
            return f"[s{serial}]\n{_merged(value, serial)}"
    return f"[s{serial}] {hashlib.sha256(ask.text.encode()).hexdigest()[:16]} is about it."


def _merged(value: Any, serial: int) -> str:
    topics = value.get("topics", {}) if isinstance(value, dict) else {}
    if len(topics) < 2:
        return "[OBJECTS FOR UPDATE]\n{}\n[OBJECTS FOR REMOVE]\n"
    kept, gone = list(topics)[:2]
    update = canonical({f"$.topics.{kept}": {"update": f"[s{serial}]"}})
    return f"[OBJECTS FOR UPDATE]\n{update}\n[OBJECTS FOR REMOVE]\n$.topics.{gone}\n"


#: Something that happens while a worker is about to commit.
Meanwhile = Callable[[], Awaitable[None]]


class Worker:
    """A worker of memories of one kind, that lets others go first, once, before it commits."""

    def __init__(self, engine: StepEngine[Any]) -> None:
        self._engine = engine
        self.meanwhile: Meanwhile | None = None
        #: Whether they did.
        self.was_interrupted = False
        before_commits(engine, self._let_others)

    async def drain(self, item: WorkItem) -> float | None:
        """Advances a memory."""
        return await self._engine.drain(item)

    async def _let_others(self) -> None:
        doing, self.meanwhile = self.meanwhile, None
        if doing is not None:
            self.was_interrupted = True
            await doing()


def worker_of(kind: str, database: Database, model: Model) -> Worker:
    """Returns a worker of memories of this kind, as another process has it."""
    facts = ModelFacts(window_tokens=WINDOW_TOKENS, count=lambda text: len(text) // 4)
    calls = gateway(model, database, lease_seconds=SHORT_LEASE_SECONDS)
    return Worker(step_engine(kind, database, calls, CONFIG, facts))


class Death:
    """Kills the worker that reaches the n-th boundary from now on; a hook of faults."""

    def __init__(self, after: int) -> None:
        self._left = after
        #: Where it happened.
        self.point: str | None = None

    def __call__(self, point: str) -> None:
        """Acts at a boundary."""
        if self.point is None:
            self._left -= 1
            if self._left >= 0:
                return
            self.point = point
        # Whatever is left of the process does nothing any more either.
        raise Killed(point)
