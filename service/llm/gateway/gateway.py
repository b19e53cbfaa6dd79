"""Makes every model call, and pays for none twice.

A call is keyed by everything that affects its output. Its intent is on disk before it is made, and
its reply before it is used. A worker that restarts finds the reply there, or waits for the process
that makes the call.
"""

import asyncio
import hashlib
import json
import struct
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, fields
from typing import Any, Protocol
from uuid import UUID

from opentelemetry import metrics, trace
from opentelemetry.trace import Span

from service.domain.calls.ledger import CallInProgress, CallScope, Lease, Reservation
from service.domain.calls.prefix_index import Prefix
from service.domain.prompting.flows import ModelReply, ModelRequest
from service.domain.prompting.tokens import estimate_prompt_tokens
from service.domain.spend.prices import ModelPrices, most_micro_usd
from service.llm.gateway.bulkhead import Bulkhead
from service.llm.gateway.call_executor import LeaseLost
from service.llm.gateway.circuits import Circuits
from service.llm.gateway.prefix_coalescer import LeaderEnd, PrefixCoalescer, Ticket
from service.llm.gateway.routing import Router
from service.llm.prefix_cache.cache import prefix_of
from service.llm.providers.failures import ModelFailure
from service.llm.providers.labels import LABELS
from service.llm.providers.plans import (
    CallPlan,
    CallRequest,
    OutcomeLedger,
    Route,
    WantedCall,
    deployment_name,
)
from service.llm.providers.renderers import cache_key_of, plan_marks
from service.llm.providers.requests import Requests
from service.llm.providers.streamed_reply import OnText, StreamedReply
from service.telemetry import tracer
from service.telemetry.names import Attribute, Metric, SpanName

#: How soon another process's call is polled first; the interval doubles up to the second.
FIRST_LOOK_SECONDS = 0.05
MAX_LOOK_SECONDS = 1.0
#: How often a call that failed goes on to another deployment.
MAX_MOVES = 8


class MakesCalls(Protocol):
    """An executor, in this process or another."""

    async def make(self, order: CallRequest) -> ModelReply:
        """Returns the reply, stored durably. Raises ModelFailure, LeaseLost, StorageError."""
        ...

    def call_off(self, key: bytes) -> None:
        """Cancels a call in progress that has no caller left."""
        ...


class Gateway:
    """Makes model calls for one worker process."""

    def __init__(
        self,
        ledger: OutcomeLedger,
        router: Router,
        executor: MakesCalls,
        *,
        prices: Callable[[str], ModelPrices],
        lease_seconds: float,
        settings: Requests | None = None,
        bulkhead: Bulkhead | None = None,
        circuits: Circuits | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Tests may leave out `settings`, `bulkhead` and `circuits`."""
        self._ledger = ledger
        self._router = router
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
        """Returns the reply to `ask`, paid for at most once for its occasion.

        At most `at_once` calls of the scope's owner are with the model; 0: no bound. Waits while
        another worker makes the same call. Raises ModelFailure when no try succeeds.

        `on_text` gets the reply while the model writes it: from the beginning for each new try,
        and all at once if the reply was stored before.
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
            prompt_tokens=sum(estimate_prompt_tokens(segment.text) for segment in ask.segments),
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
        """Cancels the calls in progress of an occasion that has no callers; they fail.

        Without this, a call whose caller is cancelled goes on, and the next caller finds its reply.
        """
        for key in self._under_way.get((scope.tenant_id, scope.occasion), ()):
            self._executor.call_off(key)

    async def _reply(self, wanted: "_Wanted", ticket: Ticket) -> tuple[ModelReply, bool]:
        """Returns the reply, and whether it was stored before."""
        model, look, moves = wanted.model, FIRST_LOOK_SECONDS, MAX_MOVES
        while True:
            route = await self._router.choose(wanted.prefix, model)
            if await ticket.waited(route):
                continue
            deployment = deployment_name(model, route.deployment)
            try:
                probing = self._circuits is not None and await self._circuits.admit(deployment)
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
                    try:
                        reply = await self._make(
                            wanted, route, begun, asked_at, ticket, probing=probing
                        )
                        return reply, False
                    except LeaseLost:
                        # Another process makes the call.
                        continue
                    except ModelFailure as failure:
                        if not failure.fault.is_deployment or not route.spare or not moves:
                            raise
                        ticket.end(LeaderEnd.FAILED)
                        moves -= 1

    async def _make(
        self,
        wanted: "_Wanted",
        route: Route,
        lease: Lease,
        asked_at: float,
        ticket: Ticket,
        *,
        probing: bool,
    ) -> ModelReply:
        order = CallRequest(
            **{one.name: getattr(wanted, one.name) for one in fields(WantedCall)},
            lease=lease,
            lease_deadline=asked_at + self._lease_seconds,
            route=route,
            plan=self._plan(wanted, route, ticket),
            probes=probing,
            on_text=None if wanted.streamed is None else wanted.streamed.again(),
        )
        ticket.going(order.plan)
        # About how many tokens of the prompt are not cached.
        fresh = max(wanted.prompt_tokens - route.predicted_tokens, 1)
        deployment = deployment_name(wanted.model, route.deployment)
        try:
            with self._can_be_called_off(wanted):
                async with self._router.going(route, fresh):
                    reply = await self._executor.make(order)
        except ModelFailure as error:
            if self._circuits is None:
                raise
            owner = wanted.scope.owner_id
            raise await self._circuits.failed(
                deployment, wanted.model, owner, error, began=asked_at, probing=probing
            ) from error
        ticket.end(LeaderEnd.BACK)
        if self._circuits is not None:
            await self._circuits.replied(deployment, asked_at)
        return reply

    @contextmanager
    def _can_be_called_off(self, wanted: "_Wanted") -> Iterator[None]:
        occasion = wanted.scope.tenant_id, wanted.scope.occasion
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
class _Wanted(WantedCall):
    """A call, and what is known of it wherever it goes."""

    #: Tokens of the whole prompt, by our estimate.
    prompt_tokens: int
    #: What was streamed of the reply; None: without a reader.
    streamed: StreamedReply | None


def _span(wanted: _Wanted) -> AbstractContextManager[Span]:
    """Opens the span of a call, with everything it waits for; each try has a span within."""
    if not trace.get_current_span().is_recording():
        return nullcontext(trace.INVALID_SPAN)
    return tracer().start_as_current_span(
        SpanName.CALL,
        attributes={
            Attribute.GEN_AI_REQUEST_MODEL: wanted.model,
            Attribute.PALIMPSEST_PURPOSE: wanted.ask.purpose.value,
        },
        # An error may contain text; the caller records what is safe.
        record_exception=False,
        set_status_on_exception=False,
    )


def call_key(
    ask: ModelRequest, prefix: Prefix, model: str, scope: CallScope, settings: bytes = b""
) -> bytes:
    """Returns SHA-256 over everything that affects the output, and the occasion.

    `settings` is what the configuration adds to the model's calls, in canonical form. The last id
    of the reusable segments represents them all, so the cost does not grow with the memory; 8 bytes
    are enough within one occasion.
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
    # In its own order: a model may write the parts of a reply in the schema's order.
    return json.dumps(schema, separators=(",", ":")).encode()
