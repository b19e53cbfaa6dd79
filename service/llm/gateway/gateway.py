"""The gateway: every model call passes here.

A call is keyed by everything that affects its output. Its intent is on disk before it is
made, and its reply before it is used: a worker that restarts finds the reply there, or
waits for the process that makes the call, and pays nothing again.
"""

import asyncio
import hashlib
import json
import struct
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol
from uuid import UUID

from opentelemetry import metrics, trace
from opentelemetry.trace import Span

from service.domain.calls.ledger import CallInProgress, CallScope, Lease, Reservation
from service.domain.calls.prefix_index import Prefix
from service.domain.prompting.flows import ModelReply, ModelRequest, Purpose
from service.domain.prompting.tokens import estimate_prompt_tokens
from service.domain.spend.prices import ModelPrices, most_micro_usd
from service.llm.gateway.bulkhead import Bulkhead
from service.llm.gateway.call_executor import LeaseLost
from service.llm.gateway.circuits import Circuits
from service.llm.gateway.prefix_coalescer import PrefixCoalescer, Ticket
from service.llm.prefix_cache.cache import prefix_of
from service.llm.providers.failures import ModelFailure
from service.llm.providers.labels import LABELS
from service.llm.providers.plans import (
    CallPlan,
    CallRequest,
    Chooser,
    Route,
    deployment_name,
)
from service.llm.providers.renderers import cache_key_of, plan_marks
from service.llm.providers.streamed_reply import OnText, StreamedReply
from service.telemetry import tracer
from service.telemetry.names import Attribute, Metric, SpanName

#: A caller that waits for another process's call polls it so soon at first, then ever more
#: rarely up to so many seconds.
FIRST_LOOK_SECONDS = 0.05
MAX_LOOK_SECONDS = 1.0
#: How often a call that failed goes on to another deployment.
MAX_MOVES = 8


class IntentLedger(Protocol):
    """Where the right to make a call is taken, durably."""

    async def begin(
        self, scope: CallScope, key: bytes, wanted: Reservation
    ) -> ModelReply | CallInProgress | Lease:
        """The reply that was paid for already, else the right to make the call, if it is free."""
        ...


class MakesCalls(Protocol):
    """An executor, in this process or another."""

    async def make(self, order: CallRequest) -> ModelReply:
        """The reply, stored durably. Raises ModelFailure, LeaseLost."""
        ...

    def call_off(self, key: bytes) -> None:
        """Cancels a call in progress that has no caller left."""
        ...


class KnowsSettings(Protocol):
    """Knows with what settings models are asked."""

    def output_settings(self, model: str, purpose: Purpose) -> bytes:
        """What the configuration adds to a model's calls, in one form; empty if nothing."""
        ...

    def reply_tokens(self, ask: ModelRequest, model: str) -> int:
        """The bound that a call's reply is sent with, thinking included."""
        ...


class Gateway:
    """Makes model calls for one worker process."""

    def __init__(
        self,
        ledger: IntentLedger,
        chooser: Chooser,
        executor: MakesCalls,
        *,
        prices: Callable[[str], ModelPrices],
        lease_seconds: float,
        settings: KnowsSettings | None = None,
        bulkhead: Bulkhead | None = None,
        circuits: Circuits | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Without `bulkhead` calls wait on for a model that does not reply; without
        `circuits` a model that fails is asked all the same."""
        self._ledger = ledger
        self._chooser = chooser
        self._executor = executor
        self._prices = prices
        self._lease_seconds = lease_seconds
        self._settings = settings
        self._bulkhead = bulkhead
        self._circuits = circuits
        self._sleep = sleep
        self._coalescer = PrefixCoalescer(prices, seconds=lease_seconds)
        #: Keys of the calls that are with the executor, by tenant and occasion.
        self._under_way: dict[tuple[UUID, str], set[bytes]] = {}
        self._replays = metrics.get_meter("palimpsest.llm").create_counter(
            Metric.LLM_REPLAYS, description="Replies found in the ledger"
        )

    async def call(
        self,
        ask: ModelRequest,
        *,
        model: str,
        scope: CallScope,
        at_once: int = 0,
        on_text: OnText | None = None,
    ) -> ModelReply:
        """The reply to `ask`, paid for at most once for its occasion.

        Of the scope's owner at most `at_once` calls are with the model at once; 0: no
        bound. Waits while another worker makes the same call. Raises ModelFailure when no try
        of it succeeds.

        `on_text` gets the reply while the model writes it: anew when the model is asked
        anew, and all at once where the reply is there already.
        """
        prefix = prefix_of(
            ask.segments, model=model, tenant_id=scope.tenant_id, owner_id=scope.owner_id
        )
        settings = b""
        if self._settings is not None:
            settings = self._settings.output_settings(model, ask.purpose)
        wanted = _Wanted(
            ask=ask,
            model=model,
            scope=scope,
            prefix=prefix,
            key=call_key(ask, prefix, model, scope, settings),
            prompt_tokens=_prompt_tokens(ask),
            at_once=at_once,
            streamed=None if on_text is None else StreamedReply(on_text),
        )
        bulkhead = nullcontext() if self._bulkhead is None else self._bulkhead.waiting(model)
        with self._coalescer.ticket(prefix, model) as ticket, _span(wanted) as span:
            async with bulkhead:
                reply, is_replayed = await self._reply(wanted, ticket)
            span.set_attribute(Attribute.REPLAYED, is_replayed)
        if wanted.streamed is not None:
            wanted.streamed.whole(reply.text)
        return reply

    def call_off(self, scope: CallScope) -> None:
        """Cancels the calls in progress of an occasion; they fail, whatever they cost.

        For an occasion without callers. A caller that only stops waiting is cancelled: then
        a call goes on, and its reply is there for the next caller.
        """
        for key in self._under_way.get(_occasion_of(scope), ()):
            self._executor.call_off(key)

    async def _reply(self, wanted: "_Wanted", ticket: Ticket) -> tuple[ModelReply, bool]:
        """The reply, and whether it was there already."""
        model, look, moves = wanted.model, FIRST_LOOK_SECONDS, MAX_MOVES
        while True:
            route = await self._chooser.choose(wanted.prefix, model)
            if await ticket.waited(route):
                continue
            try:
                probing = await self._admitted(model, route)
            except ModelFailure:
                if not route.spare or not moves:
                    raise
                moves -= 1
                continue
            asked_at = time.monotonic()
            reserved = self._reservation(wanted, route)
            begun = await self._ledger.begin(wanted.scope, wanted.key, reserved)
            match begun:
                case ModelReply():
                    self._replays.add(1, {Attribute.MODEL: LABELS.of(model)})
                    return begun, True
                case CallInProgress():
                    await self._sleep(min(look, begun.seconds + FIRST_LOOK_SECONDS))
                    look = min(look * 2, MAX_LOOK_SECONDS)
                case Lease():
                    deadline = asked_at + self._lease_seconds
                    try:
                        reply = await self._make(
                            wanted, route, begun, deadline, ticket, probing=probing
                        )
                    except LeaseLost:
                        # Another process was faster: the reply is theirs to get.
                        continue
                    except ModelFailure as error:
                        failure = await self._failed(
                            wanted, route, error, began=asked_at, probing=probing
                        )
                        if not failure.fault.is_deployment or not route.spare or not moves:
                            raise failure from error
                        ticket.failed()
                        moves -= 1
                    else:
                        if self._circuits is not None:
                            deployment = deployment_name(model, route.deployment)
                            await self._circuits.replied(deployment, asked_at)
                        return reply, False

    async def _admitted(self, model: str, route: Route) -> bool:
        """Whether the call is the probe of an open circuit. Raises ModelFailure."""
        if self._circuits is None:
            return False
        return await self._circuits.admit(deployment_name(model, route.deployment))

    async def _failed(
        self,
        wanted: "_Wanted",
        route: Route,
        failure: ModelFailure,
        *,
        began: float,
        probing: bool,
    ) -> ModelFailure:
        if self._circuits is None:
            return failure
        deployment = deployment_name(wanted.model, route.deployment)
        owner = wanted.scope.owner_id
        return await self._circuits.failed(
            deployment, wanted.model, owner, failure, began=began, probing=probing
        )

    async def _make(
        self,
        wanted: "_Wanted",
        route: Route,
        lease: Lease,
        deadline: float,
        ticket: Ticket,
        *,
        probing: bool,
    ) -> ModelReply:
        order = CallRequest(
            ask=wanted.ask,
            model=wanted.model,
            scope=wanted.scope,
            key=wanted.key,
            lease=lease,
            lease_deadline=deadline,
            prefix=wanted.prefix,
            route=route,
            plan=self._plan(wanted, route, ticket),
            at_once=wanted.at_once,
            probes=probing,
            on_text=None if wanted.streamed is None else wanted.streamed.again(),
        )
        ticket.going(order.plan)
        # About how many tokens of the prompt have to be read anew.
        fresh = max(wanted.prompt_tokens - route.predicted_tokens, 1)
        with self._listed(wanted):
            async with self._chooser.going(route, fresh):
                reply = await self._executor.make(order)
        ticket.back()
        return reply

    @contextmanager
    def _listed(self, wanted: "_Wanted") -> Iterator[None]:
        """A call can be called off meanwhile."""
        occasion = _occasion_of(wanted.scope)
        keys = self._under_way.setdefault(occasion, set())
        keys.add(wanted.key)
        try:
            yield
        finally:
            keys.discard(wanted.key)
            if not keys:
                self._under_way.pop(occasion, None)

    def _plan(self, wanted: "_Wanted", route: Route, ticket: Ticket) -> CallPlan:
        return CallPlan(
            deployment=route.deployment,
            marks=plan_marks(
                wanted.ask,
                wanted.prefix,
                self._prices(wanted.model),
                ticket.warm_segments(route),
                shared_segments=ticket.shared_segments(),
            ),
            cache_key=cache_key_of(wanted.prefix.memory_key),
        )

    def _reservation(self, wanted: "_Wanted", route: Route) -> Reservation:
        prompt, most = wanted.prompt_tokens, wanted.ask.max_output_tokens
        if self._settings is not None:
            most = self._settings.reply_tokens(wanted.ask, wanted.model)
        return Reservation(
            purpose=wanted.ask.purpose,
            model=wanted.model,
            deployment=route.deployment,
            tokens=prompt + most,
            micro_usd=most_micro_usd(
                self._prices(wanted.model), input_tokens=prompt, output_tokens=most
            ),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Wanted:
    """A call that is to be made, and what is known of it wherever it goes."""

    ask: ModelRequest
    model: str
    scope: CallScope
    prefix: Prefix
    #: As in `CallRequest`.
    key: bytes
    #: Of the whole prompt, by our estimate.
    prompt_tokens: int
    #: As in `CallRequest`.
    at_once: int
    #: What was streamed of the reply; None: without a reader.
    streamed: StreamedReply | None


def _span(wanted: _Wanted) -> AbstractContextManager[Span]:
    """Opens the span of a call with all that it waits for; a try of it has its own within."""
    if not trace.get_current_span().is_recording():
        return nullcontext(trace.INVALID_SPAN)
    return tracer().start_as_current_span(
        SpanName.CALL,
        attributes={
            Attribute.GEN_AI_REQUEST_MODEL: wanted.model,
            Attribute.PALIMPSEST_PURPOSE: wanted.ask.purpose.value,
        },
        # Its words may be those of a text; the caller records what it may.
        record_exception=False,
        set_status_on_exception=False,
    )


def _occasion_of(scope: CallScope) -> tuple[UUID, str]:
    return scope.tenant_id, scope.occasion


def _prompt_tokens(ask: ModelRequest) -> int:
    return sum(estimate_prompt_tokens(segment.text) for segment in ask.segments)


def call_key(
    ask: ModelRequest, prefix: Prefix, model: str, scope: CallScope, settings: bytes = b""
) -> bytes:
    """SHA-256 over everything that affects the output, and the occasion.

    `settings` are what the configuration adds to the model's calls, in one form.

    The reusable segments go in by their last id, which stands for all of them, so the
    cost does not grow with the memory; 8 bytes are enough within one occasion.
    """
    rest = (segment.text for segment in ask.segments[len(prefix.ids) :])
    parts = (
        str(scope.owner_id).encode(),
        scope.occasion.encode(),
        model.encode(),
        ask.template.encode(),
        prefix.ids[-1] if prefix.ids else b"",
        *(text.encode() for text in rest),
        struct.pack(">QQ", ask.max_output_tokens, ask.attempt),
        # Left out where there is none, so that the ledger of older calls stays valid.
        *(() if ask.reply_schema is None else (_schema_bytes(ask.reply_schema),)),
        *((settings,) if settings else ()),
    )
    key = hashlib.sha256()
    for part in parts:
        key.update(struct.pack(">Q", len(part)))
        key.update(part)
    return key.digest()


def _schema_bytes(schema: dict[str, Any]) -> bytes:
    # In its own order: a model may write the parts of a reply in the order of the schema.
    return json.dumps(schema, separators=(",", ":")).encode()
