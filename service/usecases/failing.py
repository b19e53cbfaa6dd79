"""Failed tries of steps: what is told of them, when the next one is, and when there is none."""

from dataclasses import replace
from uuid import UUID

import structlog

from service.config import Config
from service.domain.errors import FailedPrecondition
from service.domain.fail_points import FailPoint, reach
from service.domain.flows import ModelAsk
from service.domain.pausing import pause_seconds
from service.llm.transport import ModelFailure
from service.usecases.step_meters import FAILED
from storage import revisions, stalls
from storage.database import Database
from storage.revisions import Claim

_log = structlog.get_logger("palimpsest.step")

#: Of an error's first line, what is kept as a cause.
MAX_CAUSE_CHARACTERS = 500
#: More tries than any flow makes of one prompt.
RETRIED_ATTEMPTS = 1000


class Failing:
    """Puts memories off whose step failed, or stops them, in one worker process."""

    def __init__(self, database: Database, config: Config) -> None:
        self._database = database
        self._config = config

    async def put_off(self, tenant_id: UUID, held: Claim, error: Exception) -> bool:
        """Counts a failed try and puts the next one off; False when there is none."""
        FAILED.add(1)
        known = isinstance(error, ModelFailure | FailedPrecondition)
        _log.warning(
            "step failed",
            memory=str(held.memory_id),
            after_position=held.applied_position,
            attempt=held.attempts + 1,
            cause=cause_of(error),
            exc_info=None if known else error,
        )
        if is_final(error) or held.attempts + 1 >= self._config.step_tries:
            return False
        seconds = pause_seconds(
            self._config.step_backoff_seconds,
            held.attempts,
            asked_seconds=getattr(error, "retry_after_seconds", None) or 0.0,
        )
        async with self._database.transaction(tenant_id) as tx:
            reach(FailPoint.BACK_OFF_BEGUN)
            await revisions.back_off(tx, held, seconds)
            reach(FailPoint.BACK_OFF_WRITTEN)
        reach(FailPoint.BACKED_OFF)
        return True

    async def stall(self, tenant_id: UUID, held: Claim, to_position: int, error: Exception) -> None:
        """Stops the memory until somebody retries it. Raises Fenced."""
        async with self._database.transaction(tenant_id) as tx:
            reach(FailPoint.STALL_BEGUN)
            await stalls.stall(tx, held)
            reach(FailPoint.STALL_WRITTEN)
            await stalls.add_dead_letter(
                tx, held, to_position=to_position, cause=cause_of(error), resolution=None
            )
            reach(FailPoint.DEAD_LETTER_WRITTEN)
        reach(FailPoint.STALLED)


def asked_anew(ask: ModelAsk, held: Claim) -> ModelAsk:
    """A prompt of a memory that was let go on behind replies that were no use.

    They are in the journal: as the same ask it would get them again, for ever.
    """
    return replace(ask, attempt=ask.attempt + RETRIED_ATTEMPTS * held.retries)


def is_final(error: Exception) -> bool:
    """Whether the same step will fail again however often it is tried."""
    return not getattr(error, "retryable", True)


def cause_of(error: Exception) -> str:
    """An error in one line."""
    text = str(error).strip().splitlines()
    return (text[0] if text else type(error).__name__)[:MAX_CAUSE_CHARACTERS]
