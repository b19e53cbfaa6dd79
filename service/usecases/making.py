"""Making what somebody waits for: once it is settled it stays so, and a failed try is put off."""

from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

import structlog
from opentelemetry.trace import SpanContext

from service import tracing
from service.config import Config
from service.domain.asking import NoUse
from service.domain.errors import BudgetExhausted
from service.domain.fail_points import FailPoint, reach
from service.domain.fitting import TextTooLong
from service.domain.pausing import pause_seconds
from service.domain.schemas.generation import NoSchema
from service.domain.work import WorkItem
from service.llm.driver import WindowPassed
from service.llm.failures import ModelFailure
from service.llm.gateway import Gateway
from service.telemetry.names import Attribute
from service.usecases.failing import Pauses, is_final, logged_cause_of
from storage import settling, trace_contexts, waiting
from storage.database import Database, Transaction
from storage.errors import StorageError

_log = structlog.get_logger("palimpsest.making")

#: Characters of a cause that are kept.
CAUSE_CHARACTERS = 500


class Wanted(Protocol):
    """What is to be made, as storage has it."""

    @property
    def status(self) -> str:
        """ "pending" until it is settled."""

    @property
    def attempts(self) -> int:
        """Tries that failed."""


T = TypeVar("T", bound=Wanted)


class Maker(Generic[T]):
    """Makes one kind of thing in one worker process."""

    def __init__(
        self, database: Database, gateway: Gateway, marker_key: bytes, config: Config
    ) -> None:
        self._database = database
        self._gateway = gateway
        self._marker_key = marker_key
        self._config = config
        self._pauses = Pauses(config.step_backoff_seconds)

    async def find(self, tx: Transaction, item: WorkItem) -> T | None:
        """What is wanted; None when it is not there."""
        raise NotImplementedError

    async def produce(self, item: WorkItem, wanted: T) -> None:
        """Makes it and stores it, if nobody else did meanwhile."""
        raise NotImplementedError

    async def is_wanted(self, item: WorkItem, wanted: T) -> bool:
        """Whether what is pending is to be made now."""
        return True

    async def make(self, item: WorkItem) -> None:
        """Makes what is pending; does nothing when it is settled.

        Two workers may do it at once after a crash: the journal makes them share the
        model calls, and the first to store the result wins. Raises StorageError.
        """
        async with self._database.transaction(item.tenant_id, name="answer") as tx:
            wanted = await self.find(tx, item)
            causes = await self._causes(tx, item, wanted)
        reach(FailPoint.WANTED_READ)
        if wanted is None or wanted.status != "pending" or not await self.is_wanted(item, wanted):
            return
        key = {Attribute.SESSION_KEY: str(item.session_key)}
        with tracing.process(item.kind.value, causes, key) as span:
            try:
                await self.produce(item, wanted)
            except StorageError:
                raise
            except Exception as error:
                # What breaks the flow must fail, not kill its worker.
                tracing.failed(span, error)
                await self._put_off(item, wanted.attempts, error)

    async def _causes(
        self, tx: Transaction, item: WorkItem, wanted: T | None
    ) -> Sequence[SpanContext]:
        """The span that asked for it, if that was sampled; asks nobody where there are no spans."""
        if wanted is None or not tracing.is_on():
            return ()
        found = await trace_contexts.read(tx, item.session_key, item.item_id, after=-1, upto=0)
        return [context for _, context in found]

    async def _put_off(self, item: WorkItem, attempts: int, error: Exception) -> None:
        """Writes a failed try down: another follows, with growing pauses, or it is given up."""
        known = isinstance(error, ModelFailure | NoSchema | NoUse | BudgetExhausted | TextTooLong)
        cause = (str(error).strip().splitlines() or [type(error).__name__])[0][:CAUSE_CHARACTERS]
        _log.warning(
            f"{item.kind.value} failed",
            item=str(item.item_id),
            attempt=attempts + 1,
            cause=logged_cause_of(error),
            exc_info=None if known else error,
        )
        waits = isinstance(error, ModelFailure) and error.is_deployment
        async with self._database.transaction(item.tenant_id, name="answer") as tx:
            if isinstance(error, ModelFailure) and waits:
                # It stays asked for; whoever asked is told at the deadline, and can resume it.
                seconds = self._pauses.next(item.item_id, error)
                await waiting.put_off(tx, item, model=error.waits_for, cause=cause, seconds=seconds)
            elif _is_final(error) or attempts + 1 >= self._config.step_tries:
                await settling.fail(tx, item, cause)
            else:
                seconds = pause_seconds(
                    self._config.step_backoff_seconds,
                    attempts,
                    asked_seconds=getattr(error, "retry_after_seconds", None) or 0.0,
                )
                await settling.back_off(tx, item, seconds)
            reach(FailPoint.PUT_OFF_WRITTEN)
        reach(FailPoint.PUT_OFF)


def _is_final(error: Exception) -> bool:
    match error:
        case NoSchema() | NoUse() | TextTooLong() | WindowPassed():
            # The journal would give the replies that were no use once more, and the text,
            # or the prompt, would not be shorter.
            return True
        case BudgetExhausted():
            # Who waits is told, and can ask again.
            return not error.waits_for_calls
        case ModelFailure():
            return is_final(error)
    return False
