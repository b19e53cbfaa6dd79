"""Failed steps: reports them, delays the next try, and stops a memory after the last one."""

import traceback
from collections import OrderedDict
from uuid import UUID

import structlog
from opentelemetry.trace import Span

from service.domain.prism.schemas.generation import NoSchema
from service.domain.prompting.asking import NoUse
from service.domain.values.errors import FailedPrecondition
from service.domain.values.pausing import MAX_SECONDS, pause_seconds, spread
from service.llm.gateway.circuits import MAX_ASKED_SECONDS
from service.llm.providers.failures import ModelFailure
from service.settings.config import Config
from service.telemetry import meter, tracing
from service.telemetry.names import Metric
from service.usecases.memories.metrics import FAILED
from service.usecases.memories.step_tools import StepTools
from storage.engine.claims import Claim
from storage.memories import revisions, stalls, waiting

_log = structlog.get_logger("palimpsest.step")

#: What is kept of an error's first line as a cause.
MAX_CAUSE_CHARACTERS = 500
#: What waits for a model is woken when that replies again; else it looks by itself after
#: about so long, in seconds.
WAIT_SECONDS = 600.0
#: Memories whose pauses a process remembers.
MAX_PAUSES = 10_000

_WAITED = meter().create_counter(
    Metric.STEPS_WAITED, description="Steps that were put off: their model gave no reply"
)


class Pauses:
    """Pauses that grow while the same thing finds no model, in one process."""

    def __init__(self, first_seconds: float) -> None:
        self._first_seconds = first_seconds
        self._failures: OrderedDict[UUID, int] = OrderedDict()

    def next(self, owner_id: UUID, error: ModelFailure) -> float:
        """Returns how long to wait now, in seconds."""
        if error.waits_for is not None:
            self._failures.pop(owner_id, None)
            return spread(WAIT_SECONDS)
        failures = self._failures.pop(owner_id, 0)
        self._failures[owner_id] = failures + 1
        if len(self._failures) > MAX_PAUSES:
            self._failures.popitem(last=False)
        asked = min(error.retry_after_seconds or 0.0, MAX_ASKED_SECONDS)
        longest = error.longest_pause_seconds
        return pause_seconds(
            self._first_seconds,
            failures,
            asked_seconds=asked,
            max_seconds=MAX_SECONDS if longest is None else min(longest, MAX_SECONDS),
        )

    def forget(self, owner_id: UUID) -> None:
        """Begins with the shortest pause again."""
        self._failures.pop(owner_id, None)


class StepFailures:
    """Backs off memories whose step failed, or stops them, in one worker process."""

    def __init__(self, tools: StepTools) -> None:
        self._tools = tools
        self._database = tools.database
        self._config = tools.config
        self._pauses = Pauses(tools.config.step_backoff_seconds)

    async def back_off(self, held: Claim, error: Exception) -> bool:
        """Delays the next try of a failed step; returns False when there is none.

        A try counts when it was the step that failed, not the deployment that serves its model.
        Raises Fenced.
        """
        if isinstance(error, ModelFailure) and error.is_deployment:
            await self._wait(held, error)
            return True
        self._pauses.forget(held.memory_id)
        FAILED.add(1)
        known = isinstance(error, ModelFailure | FailedPrecondition | NoUse)
        _log.warning(
            "step failed",
            after_position=held.applied_position,
            attempt=held.attempts + 1,
            cause=logged_cause_of(error),
            exc_info=None if known else error,
        )
        if is_final(error) or held.attempts + 1 >= self._config.step_tries:
            return False
        seconds = retry_seconds(self._config, held.attempts, error)
        async with self._database.transaction(held.tenant_id, name="failure.back_off") as tx:
            await revisions.back_off(tx, held, seconds)
        return True

    async def _wait(self, held: Claim, error: ModelFailure) -> None:
        """Leaves a memory until its model replies again; no try is counted. Raises Fenced."""
        _WAITED.add(1)
        seconds = self._pauses.next(held.memory_id, error)
        cause = cause_of(error)
        async with self._database.transaction(held.tenant_id, name="failure.defer") as tx:
            await waiting.back_off_memory(
                tx, held, model=error.waits_for, cause=cause, seconds=seconds
            )
        _log.info(
            "memory waits for its model",
            cause=cause,
            seconds=None if error.waits_for else round(seconds, 1),
        )

    async def stall(self, held: Claim, to_position: int, error: Exception) -> None:
        """Stops the memory until a client retries it. Raises Fenced."""
        ambiguous = isinstance(error, ModelFailure) and error.fault.is_ambiguous
        async with self._database.transaction(held.tenant_id, name="failure.stall") as tx:
            await stalls.stall(tx, held)
            await stalls.add_dead_letter(
                tx,
                held,
                to_position=to_position,
                cause=cause_of(error),
                resolution=None,
                ambiguous_model=self._tools.model(held) if ambiguous else None,
            )


def retry_seconds(config: Config, attempts: int, error: Exception) -> float:
    """Returns the pause before the next try of what has failed so often before."""
    asked = getattr(error, "retry_after_seconds", None) or 0.0
    return pause_seconds(config.step_backoff_seconds, attempts, asked_seconds=asked)


def is_final(error: Exception) -> bool:
    """Returns whether the same step will fail again however often it is tried."""
    if isinstance(error, ModelFailure):
        of_step = not error.is_deployment and not error.fault.is_ambiguous
        return of_step and not error.retryable
    return not getattr(error, "retryable", True)


def cause_of(error: Exception) -> str:
    """Returns an error in one line."""
    text = str(error).strip().splitlines()
    return (text[0] if text else type(error).__name__)[:MAX_CAUSE_CHARACTERS]


def logged_cause_of(error: Exception) -> str:
    """Returns an error in one line, without words of the model: they may be those of a text."""
    if isinstance(error, NoUse | NoSchema):
        return error.plain[:MAX_CAUSE_CHARACTERS]
    return cause_of(error)


def trace(span: Span, error: Exception) -> None:
    """Records a failure in a span: its type and where it was raised, never its words."""
    tracing.failed(span, error)
    raised_at = "".join(traceback.format_tb(error.__traceback__))
    plain = {"exception.message": "", "exception.stacktrace": raised_at}
    span.record_exception(error, attributes=plain)
