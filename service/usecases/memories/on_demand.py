"""On-demand jobs: a worker completes each once, and backs off after a failed try."""

from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

import structlog
from opentelemetry.trace import SpanContext

from service.domain.calls.ledger import Gone
from service.domain.prism.schemas.generation import NoSchema
from service.domain.prompting.asking import NoUse
from service.domain.prompting.fitting import TextTooLong
from service.domain.values.errors import BudgetExhausted, Exhausted
from service.domain.values.reasons import Reason
from service.domain.values.work_items import WorkItem
from service.llm.gateway.driver import WindowPassed
from service.llm.gateway.gateway import Gateway
from service.llm.providers.failures import ModelFailure
from service.settings.config import Config
from service.telemetry import tracing
from service.telemetry.names import Attribute
from service.usecases.log.concurrency_limiter import BUSY_RETRY_SECONDS
from service.usecases.memories.step_failures import (
    Pauses,
    cause_of,
    is_final,
    logged_cause_of,
    retry_seconds,
)
from storage.engine import trace_contexts
from storage.engine.database import Database, Transaction
from storage.engine.errors import StorageError, Violated
from storage.memories import job_results, waiting

_log = structlog.get_logger("palimpsest.making")


class PendingJob(Protocol):
    """A job without a result yet, as storage has it."""

    @property
    def status(self) -> str:
        """ "pending" until the job has ended."""

    @property
    def attempts(self) -> int:
        """Tries that failed."""


T = TypeVar("T", bound=PendingJob)


class OnDemandJob(Generic[T]):
    """Completes jobs of one kind in one worker process."""

    def __init__(
        self, database: Database, gateway: Gateway, marker_key: bytes, config: Config
    ) -> None:
        self._database = database
        self._gateway = gateway
        self._marker_key = marker_key
        self._config = config
        self._pauses = Pauses(config.step_backoff_seconds)

    async def find(self, tx: Transaction, item: WorkItem) -> T | None:
        """Returns the job; None when it is not there."""
        raise NotImplementedError

    async def produce(self, item: WorkItem, pending: T) -> None:
        """Makes the result and stores it, if no other worker did meanwhile."""
        raise NotImplementedError

    async def is_wanted(self, item: WorkItem, pending: T) -> bool:
        """Returns whether the pending job is to be done now."""
        return True

    async def make(self, item: WorkItem) -> None:
        """Completes a pending job; does nothing when it has ended.

        Two workers may do it at once after a crash: the ledger makes them share the
        model calls, and the first to store the result wins. Raises StorageError.
        """
        async with self._database.transaction(item.tenant_id, name="answer.load") as tx:
            pending = await self.find(tx, item)
            causes = await self._causes(tx, item, pending)
        if (
            pending is None
            or pending.status != "pending"
            or not await self.is_wanted(item, pending)
        ):
            return
        key = {Attribute.SESSION_KEY: str(item.session_key)}
        with tracing.process(item.kind.value, causes, key) as span:
            try:
                await self.produce(item, pending)
            except Gone:
                return
            except Violated:
                # What it adds to was deleted meanwhile.
                if await self._is_there(item):
                    raise
            except StorageError:
                raise
            except Exception as error:
                # What breaks the flow must fail, not kill its worker.
                tracing.failed(span, error)
                await self._back_off(item, pending.attempts, error)

    async def _is_there(self, item: WorkItem) -> bool:
        async with self._database.transaction(item.tenant_id, name="answer") as tx:
            return await self.find(tx, item) is not None

    async def _causes(
        self, tx: Transaction, item: WorkItem, pending: T | None
    ) -> Sequence[SpanContext]:
        """Returns the span of the request, if it was sampled; reads nothing without spans."""
        if pending is None or not tracing.is_on():
            return ()
        found = await trace_contexts.read(tx, item.session_key, item.item_id, after=-1, upto=0)
        return [context for _, context in found]

    async def _back_off(self, item: WorkItem, attempts: int, error: Exception) -> None:
        """Stores a failed try: another follows, with growing pauses, or the job fails."""
        known = isinstance(error, ModelFailure | NoSchema | NoUse | BudgetExhausted | TextTooLong)
        cause = cause_of(error)
        _log.warning(
            f"{item.kind.value} failed",
            item=str(item.item_id),
            attempt=attempts + 1,
            cause=logged_cause_of(error),
            exc_info=None if known else error,
        )
        waits = isinstance(error, ModelFailure) and error.is_deployment
        async with self._database.transaction(item.tenant_id, name="answer.back_off") as tx:
            if isinstance(error, ModelFailure) and waits:
                # It stays pending; the client gets an error at its deadline, and can resume it.
                seconds = self._pauses.next(item.item_id, error)
                await waiting.back_off(
                    tx, item, model=error.waits_for, cause=cause, seconds=seconds
                )
            elif _is_final(error) or attempts + 1 >= self._config.step_tries:
                is_over_budget = isinstance(error, BudgetExhausted)
                await job_results.fail(tx, item, cause, over_budget=is_over_budget)
            else:
                await job_results.back_off(tx, item, retry_seconds(self._config, attempts, error))


def _is_final(error: Exception) -> bool:
    match error:
        case NoSchema() | NoUse() | TextTooLong() | WindowPassed():
            # The ledger would give the replies that were no use once more, and the text,
            # or the prompt, would not be shorter.
            return True
        case BudgetExhausted():
            # The client gets the error, and can ask again.
            return not error.waits_for_calls
        case ModelFailure():
            return is_final(error)
    return False


def too_many_pending(what: str, limit: int) -> Exhausted:
    """Returns the refusal of a job while as many are pending as may be."""
    return Exhausted(
        Reason.TOO_MANY_PENDING,
        f"{limit} {what} of the tenant are pending already: ask again when some have ended, or"
        " cancel some",
        {"limit": limit},
        retry_seconds=BUSY_RETRY_SECONDS,
    )
