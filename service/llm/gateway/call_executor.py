"""Makes a call for which it has the lease, and stores the outcome.

It may run in a process of its own (`service.llm.executor`), which survives the worker that ordered
the call. A reply goes to the worker after its durable row is written, and the index knows that its
prompt was sent.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractContextManager, asynccontextmanager, suppress
from contextvars import Context
from dataclasses import dataclass, replace
from functools import partial
from uuid import UUID
from weakref import WeakValueDictionary

import structlog
from opentelemetry import metrics, trace
from opentelemetry.trace import Span, SpanKind, StatusCode

from service.domain.calls.ledger import Call, HeldCall, Lease
from service.domain.prompting.ends import End
from service.domain.prompting.faults import Fault
from service.domain.prompting.flows import ModelReply
from service.domain.spend.prices import ModelPrices
from service.domain.values.fault_hook import boundary
from service.llm.gateway.metrics import ModelMetrics, provider_name
from service.llm.prefix_cache.cache import PrefixIndex
from service.llm.prefix_cache.feedback import PrefixFeedback
from service.llm.providers import recording
from service.llm.providers.failures import ModelFailure
from service.llm.providers.plans import CallRequest, OutcomeLedger
from service.llm.providers.streamed_reply import StreamedReply
from service.llm.providers.transport import Completion, Transport
from service.telemetry.names import Attribute, GenAiOperation, Metric

_log = structlog.get_logger("palimpsest.llm")

#: Wait before the second try of a call; doubles with each further one.
BACKOFF_SECONDS = 0.5
MAX_BACKOFF_SECONDS = 30.0
#: The longest wait that a provider may ask for.
MAX_RETRY_AFTER_SECONDS = 120.0
#: Share of a wait that is added at most, so that calls that failed together are not retried
#: together.
JITTER = 0.25
#: Renewals of a lease within its time.
RENEWALS = 3


class LeaseLost(Exception):
    """The call was not made: another process has taken its lease."""


@dataclass(frozen=True, slots=True)
class _CallResult:
    """The outcome of a try: a completion or a failure."""

    completion: Completion | None
    failure: ModelFailure | None
    latency_ms: int


@dataclass(kw_only=True, slots=True)
class _ActiveCall:
    """A call in progress in this process."""

    order: CallRequest
    #: That of its newest order; it is renewed and recorded with this.
    lease: Lease
    #: What was recorded last, and with which lease; None until then.
    recorded: tuple[Call, Lease] | None = None
    task: asyncio.Task[ModelReply] | None = None

    def held(self) -> HeldCall:
        """Returns the call with its current lease."""
        return HeldCall(scope=self.order.scope, key=self.order.key, lease=self.lease)


class Slots:
    """Counts the calls of one executor by the memory that they are for.

    A call occupies a slot while its model thinks, not while its intent or reply is written. To
    keep all slots in use, more calls have to be about to begin.
    """

    def __init__(self) -> None:
        #: Semaphores of owners with calls under way: those calls reference them.
        self._free: WeakValueDictionary[UUID, asyncio.Semaphore] = WeakValueDictionary()

    @asynccontextmanager
    async def one(self, owner_id: UUID, at_once: int) -> AsyncIterator[None]:
        """Waits for a slot of `at_once`, first come, first served; 0: there is no bound."""
        if not at_once:
            yield
            return
        free = self._free.setdefault(owner_id, asyncio.Semaphore(at_once))
        async with free:
            yield


class CallExecutor:
    """Makes calls for one or many workers."""

    def __init__(
        self,
        transport: Transport,
        ledger: OutcomeLedger,
        index: PrefixIndex,
        *,
        prices: Callable[[str], ModelPrices],
        tries: int,
        lease_seconds: float,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._transport = transport
        self._ledger = ledger
        self._feedback = PrefixFeedback(index, prices)
        self._tries = tries
        self._slots = Slots()
        self._renewal_seconds = lease_seconds / RENEWALS
        self._sleep = sleep
        self._running: set[asyncio.Task[ModelReply]] = set()
        #: By session and key.
        self._under_way: dict[tuple[UUID, bytes], _ActiveCall] = {}
        #: Renews their leases; ends when there are none.
        self._keeper: asyncio.Task[None] | None = None
        self._idle = asyncio.Event()
        #: By key of the calls under way: what ends their tries.
        self._stops: dict[bytes, asyncio.Timeout | None] = {}
        self._called_off: set[bytes] = set()
        self._tracer = trace.get_tracer("palimpsest.llm")
        meter = metrics.get_meter("palimpsest.llm")
        self._metrics = ModelMetrics()
        self._in_flight = meter.create_up_down_counter(
            Metric.LLM_CALLS_IN_FLIGHT, description="Model calls under way"
        )

    async def make(self, order: CallRequest) -> ModelReply:
        """Returns the reply, stored durably. Raises ModelFailure, LeaseLost, StorageError.

        A call that has begun is completed and its reply stored even if its caller is cancelled;
        only `call_off` ends it. A second order for a call in progress waits for that one: its
        lease expired while this process was paused, and it is paid for already.
        """
        place = order.scope.session_key, order.key
        while (under_way := self._under_way.get(place)) is not None:
            reply = await self._join(under_way, order)
            if reply is not None:
                return reply
        # From now on it can be called off, though its task has not begun.
        self._stops[order.key] = None
        under_way = self._under_way[place] = _ActiveCall(order=order, lease=order.lease)
        self._idle.clear()
        if self._keeper is None:
            # It serves all calls, so its log lines name none of them.
            self._keeper = asyncio.create_task(self._keep(), context=Context())
        under_way.task = asyncio.create_task(self._make(under_way))
        self._running.add(under_way.task)
        self._in_flight.add(1)
        under_way.task.add_done_callback(partial(self._forget, place))
        return await asyncio.shield(under_way.task)

    async def _join(self, under_way: _ActiveCall, order: CallRequest) -> ModelReply | None:
        """Returns the reply of a call in progress; None if it ended without this order's lease."""
        assert under_way.task is not None, "it gets a task at once"
        if order.lease.fence > under_way.lease.fence:
            under_way.lease = order.lease
        # Not awaited: its outcome is for the caller that ordered it under its last lease.
        await asyncio.wait((under_way.task,))
        call, lease = under_way.recorded or (None, under_way.lease)
        if call is not None and call.reply is not None and lease.fence < order.lease.fence:
            # Written again, it also ends the intent of this order.
            return await self._ledger.record(order.scope, call, order.lease, last=True)
        if not under_way.task.cancelled() and lease.fence < order.lease.fence:
            return None
        return await under_way.task

    def call_off(self, key: bytes) -> None:
        """Cancels a call without callers, whatever it has cost: it fails for good."""
        if key not in self._stops:
            return
        self._called_off.add(key)
        stop = self._stops[key]
        if stop is not None:
            stop.reschedule(asyncio.get_running_loop().time())

    async def finish(self, seconds: float | None = None) -> None:
        """Waits for all calls in progress, for at most `seconds`; None: without limit.

        Later ones are cancelled: another executor repeats them once their leases expire.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._running:
                    await asyncio.wait(self._running)
        late = list(self._running)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait((self._keeper,))

    def _forget(self, place: tuple[UUID, bytes], task: asyncio.Task[ModelReply]) -> None:
        # This callback runs before those callers continue that joined the call.
        del self._under_way[place]
        self._stops.pop(place[1], None)
        self._called_off.discard(place[1])
        if not self._under_way:
            self._idle.set()
        self._running.discard(task)
        self._in_flight.add(-1)
        if not task.cancelled():
            # Retrieved, or asyncio would warn about an outcome without a caller.
            task.exception()

    async def _make(self, under_way: _ActiveCall) -> ModelReply:
        order = under_way.order
        # The order may have waited: the lease must last until its first renewal.
        if time.monotonic() >= order.lease_deadline - self._renewal_seconds:
            await self._hold(under_way)
        # Another deployment is better than a wait; and one try is enough for a probe.
        tries = 1 if order.route.spare or order.probes else self._tries
        streamed = None if order.on_text is None else StreamedReply(order.on_text)
        for attempt in range(1, tries + 1):
            if attempt > 1:
                # A process that was paused, or had no database, may have lost the lease.
                await self._hold(under_way)
            async with self._slots.one(order.scope.owner_id, order.at_once):
                made = await self._try(under_way, streamed)
            failure = made.failure
            last = failure is not None and (not failure.retryable or attempt == tries)
            call = self._call_of(order, made)
            reply = await self._record(under_way, call, last=last)
            if reply is not None:
                if made.completion is not None:
                    await self._feedback.learn(order, call)
                return reply
            assert failure is not None, "a call without a reply has failed"
            if last:
                raise failure
            with suppress(ModelFailure):
                # If called off, it ends with the next try, which sends no request.
                async with self._wanted(order):
                    await self._sleep(_wait_seconds(failure, attempt, order.key))
        raise AssertionError("the last try returns or raises")

    async def _keep(self) -> None:
        """Renews the leases of all calls in progress together, until there are none."""
        while self._under_way:
            try:
                async with asyncio.timeout(self._renewal_seconds):
                    await self._idle.wait()
            except TimeoutError:
                await self._renew_all()
        self._keeper = None

    async def _renew_all(self) -> None:
        try:
            await self._ledger.renew_all([one.held() for one in self._under_way.values()])
        except Exception as error:
            # The calls will be paid for whatever the database does: their replies must get the
            # chance to be stored.
            _log.warning("leases not renewed", cause=str(error))

    async def _hold(self, under_way: _ActiveCall) -> None:
        """Renews the lease before a try. Raises LeaseLost."""
        while not await self._ledger.renew(held := under_way.held()):
            if held.lease == under_way.lease:
                raise LeaseLost

    async def _record(self, under_way: _ActiveCall, call: Call, *, last: bool) -> ModelReply | None:
        under_way.recorded = call, under_way.lease
        scope = under_way.order.scope
        return await self._ledger.record(scope, call, under_way.lease, last=last)

    async def _try(self, under_way: _ActiveCall, streamed: StreamedReply | None) -> _CallResult:
        order = under_way.order
        start = time.perf_counter()
        completion: Completion | None = None
        failure: ModelFailure | None = None
        with self._span(order) as span:
            try:
                completion = await self._complete(order, streamed)
                _describe_reply(span, completion)
            except ModelFailure as error:
                failure = error
                span.set_status(StatusCode.ERROR)
                span.set_attribute(Attribute.ERROR_TYPE, error.fault.value)
                _log.warning("model call failed", model=order.model, cause=str(error))
            except Exception as error:
                span.set_status(StatusCode.ERROR)
                span.set_attribute(Attribute.ERROR_TYPE, type(error).__name__)
                # The next try must not wait for this lease, nor budgets keep its reservation.
                broken = ModelFailure(f"the call broke: {type(error).__name__}", retryable=False)
                made = _CallResult(None, broken, round((time.perf_counter() - start) * 1000))
                await self._record(under_way, self._call_of(order, made), last=True)
                raise
            seconds = time.perf_counter() - start
            self._metrics.record(
                GenAiOperation.CHAT,
                order.model,
                order.ask.purpose,
                seconds,
                error=None if failure is None else failure.fault.value,
                input_tokens=None if completion is None else completion.input_tokens,
                output_tokens=None if completion is None else completion.output_tokens,
            )
        return _CallResult(completion, failure, round(seconds * 1000))

    def _span(self, order: CallRequest) -> AbstractContextManager[Span]:
        ask, model = order.ask, order.model
        name = f"{GenAiOperation.CHAT} {model}"
        return self._tracer.start_as_current_span(
            name,
            kind=SpanKind.CLIENT,
            attributes={
                Attribute.GEN_AI_OPERATION_NAME: GenAiOperation.CHAT,
                Attribute.GEN_AI_PROVIDER_NAME: provider_name(model),
                Attribute.GEN_AI_REQUEST_MODEL: model,
                Attribute.GEN_AI_REQUEST_MAX_TOKENS: ask.max_output_tokens,
                Attribute.PALIMPSEST_PURPOSE: ask.purpose.value,
                Attribute.SESSION_KEY: str(order.scope.session_key),
            },
            # A defect is recorded where its step fails; its message may contain a reply.
            record_exception=False,
            set_status_on_exception=False,
        )

    async def _complete(self, order: CallRequest, streamed: StreamedReply | None) -> Completion:
        """Makes one try, unless the call is called off. Raises ModelFailure."""
        plan = order.plan
        if streamed is not None:
            streamed.begin()
            plan = replace(plan, on_text=streamed.more)
        async with self._wanted(order):
            boundary("model", "called")
            with recording.about(order.scope.tenant_id, order.scope.session_key):
                done = await self._transport.complete(order.ask, order.model, plan)
            boundary("model", "replied")
            return done

    @asynccontextmanager
    async def _wanted(self, order: CallRequest) -> AsyncIterator[None]:
        """Surrounds what is cancelled when the call is called off. Raises ModelFailure then."""
        if order.key in self._called_off:
            raise _called_off()
        stop = asyncio.timeout(None)
        try:
            async with stop:
                self._stops[order.key] = stop
                yield
        except TimeoutError:
            if not stop.expired():
                raise
            raise _called_off() from None
        finally:
            self._stops[order.key] = None

    def _call_of(self, order: CallRequest, made: _CallResult) -> Call:
        done = made.completion
        # At least one token of a prompt is always computed.
        predicted = min(self._feedback.predicted(order), done.input_tokens - 1) if done else 0
        return Call(
            key=order.key,
            purpose=order.ask.purpose,
            template=order.ask.template,
            model=order.model,
            reply=done.text if done else None,
            failure=str(made.failure) if made.failure else None,
            input_tokens=done.input_tokens if done else 0,
            predicted_cached_tokens=max(predicted, 0),
            reported_cached_tokens=done.cached_tokens if done else None,
            cache_write_tokens=done.cache_write_tokens if done else None,
            output_tokens=done.output_tokens if done else 0,
            cost_micro_usd=done.cost_micro_usd if done else None,
            latency_ms=made.latency_ms,
            deployment=order.plan.deployment,
            reasoning_tokens=done.reasoning_tokens if done else None,
            end=done.end if done else End.COMPLETE,
            said=done.said if done else "",
            residual=self._feedback.miss_reason(order, max(predicted, 0), done.cached_tokens).value
            if done
            else None,
        )


#: OpenTelemetry's words for how a reply ended, where it has one.
_FINISH_REASONS = {
    End.COMPLETE: "stop",
    End.LENGTH: "length",
    End.FILTER: "content_filter",
    End.TOOL_CALL: "tool_call",
}


def _describe_reply(span: Span, done: Completion) -> None:
    """Sets the attributes of a reply, without its text."""
    if not span.is_recording():
        return
    span.set_attribute(Attribute.GEN_AI_RESPONSE_MODEL, done.model)
    span.set_attribute(Attribute.GEN_AI_USAGE_INPUT_TOKENS, done.input_tokens)
    span.set_attribute(Attribute.GEN_AI_USAGE_OUTPUT_TOKENS, done.output_tokens)
    if done.cached_tokens is not None:
        span.set_attribute(Attribute.GEN_AI_USAGE_CACHE_READ_INPUT_TOKENS, done.cached_tokens)
    reason = _FINISH_REASONS.get(done.end, done.end.value)
    span.set_attribute(Attribute.GEN_AI_RESPONSE_FINISH_REASONS, [reason])


def _called_off() -> ModelFailure:
    return ModelFailure(
        "the call was called off: its reply is no longer needed",
        retryable=False,
        fault=Fault.CALLED_OFF,
    )


def _wait_seconds(failure: ModelFailure, attempt: int, key: bytes) -> float:
    """Returns the pause after the `attempt`-th try: never less than the provider asks for.

    The jitter comes from the call's key: it differs between calls, not between runs.
    """
    backoff = min(BACKOFF_SECONDS * 2.0 ** (attempt - 1), MAX_BACKOFF_SECONDS)
    asked = min(failure.retry_after_seconds or 0.0, MAX_RETRY_AFTER_SECONDS)
    return max(backoff, asked) * (1 + JITTER * key[attempt % len(key)] / 255)
