"""The gateway: every model call passes here.

A call is keyed by everything that affects its output. Its intent is on disk before it is
made, and its reply before anybody uses it: a worker that dies finds the reply there, or
waits for whoever makes the call, and pays nothing again.
"""

import asyncio
import hashlib
import json
import struct
import time
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from opentelemetry import metrics

from service.domain.flows import ModelAsk, ModelReply
from service.domain.ledger import Busy, CallScope, Lease, Reservation
from service.domain.prices import ModelPrices, most_micro_usd
from service.domain.tokens import estimate_prompt_tokens
from service.llm.caller import LeaseLost
from service.llm.plans import CallOrder, Chooser, Plan, Route, reply_key
from service.llm.prefix_cache import Prefix, prefix_of
from service.llm.renderers import cache_key_of, plan_marks
from service.llm.transport import ModelFailure

#: Who waits for a call of somebody else's looks after it at first so soon, then ever more
#: rarely up to so many seconds.
FIRST_LOOK_SECONDS = 0.05
MAX_LOOK_SECONDS = 1.0
#: How often a call that failed goes on to another deployment.
MAX_MOVES = 8


class IntentLedger(Protocol):
    """Where the right to make a call is taken, durably."""

    async def begin(
        self, scope: CallScope, key: bytes, wanted: Reservation
    ) -> ModelReply | Busy | Lease:
        """The reply that was paid for already, else the right to make the call, if it is free."""
        ...


class MakesCalls(Protocol):
    """A caller, in this process or another."""

    async def make(self, order: CallOrder) -> ModelReply:
        """The reply, stored durably. Raises ModelFailure, LeaseLost."""
        ...


class KnowsForms(Protocol):
    """Knows how models are asked: which keep to a reply's schema, and with what settings."""

    def structured(self, model: str) -> bool:
        """Whether the model writes its reply by a JSON Schema."""
        ...

    def output_settings(self, model: str) -> bytes:
        """What the configuration adds to the model's calls, in one form; empty if nothing."""
        ...


class Gateway:
    """Makes model calls for one worker process."""

    def __init__(
        self,
        ledger: IntentLedger,
        chooser: Chooser,
        caller: MakesCalls,
        *,
        prices: Callable[[str], ModelPrices],
        lease_seconds: float,
        forms: KnowsForms | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._ledger = ledger
        self._chooser = chooser
        self._caller = caller
        self._prices = prices
        self._lease_seconds = lease_seconds
        self._forms = forms
        self._sleep = sleep
        self._replays = metrics.get_meter("palimpsest.llm").create_counter(
            "palimpsest.llm.replays", description="Replies found in the journal"
        )

    def structured(self, model: str) -> bool:
        """Whether to ask this model for replies by a schema."""
        return self._forms is not None and self._forms.structured(model)

    async def call(self, ask: ModelAsk, *, model: str, scope: CallScope) -> ModelReply:
        """The reply to `ask`, paid for at most once for its occasion.

        Waits while another worker makes the same call. Raises ModelFailure when no try
        of it succeeds.
        """
        prefix = prefix_of(
            ask.segments, model=model, tenant_id=scope.tenant_id, owner_id=scope.owner_id
        )
        settings = b"" if self._forms is None else self._forms.output_settings(model)
        key = call_key(ask, prefix, model, scope, settings)
        look = FIRST_LOOK_SECONDS
        moves = MAX_MOVES
        while True:
            route, copy = await self._chooser.choose(prefix, model, reply_key(scope, key))
            if copy is not None:
                self._replays.add(1, {"model": model})
                return copy
            asked_at = time.monotonic()
            begun = await self._ledger.begin(scope, key, self._reservation(ask, model, route))
            match begun:
                case ModelReply():
                    self._replays.add(1, {"model": model})
                    return begun
                case Busy():
                    await self._sleep(min(look, begun.seconds + FIRST_LOOK_SECONDS))
                    look = min(look * 2, MAX_LOOK_SECONDS)
                case Lease():
                    order = CallOrder(
                        ask=ask,
                        model=model,
                        scope=scope,
                        key=key,
                        lease=begun,
                        lease_deadline=asked_at + self._lease_seconds,
                        prefix=prefix,
                        route=route,
                        plan=self._plan(ask, prefix, model, route),
                    )
                    try:
                        async with self._chooser.going(route, _fresh_tokens(ask, route)):
                            return await self._caller.make(order)
                    except LeaseLost:
                        # Somebody was faster: the reply is theirs to get.
                        continue
                    except ModelFailure as failure:
                        if not failure.retryable or not route.spare or not moves:
                            raise
                        moves -= 1

    def _plan(self, ask: ModelAsk, prefix: Prefix, model: str, route: Route) -> Plan:
        return Plan(
            deployment=route.deployment,
            marks=plan_marks(ask, prefix, self._prices(model), route.warm_segments),
            cache_key=cache_key_of(prefix.memory_key),
        )

    def _reservation(self, ask: ModelAsk, model: str, route: Route) -> Reservation:
        prompt = sum(estimate_prompt_tokens(segment.text) for segment in ask.segments)
        return Reservation(
            purpose=ask.purpose,
            model=model,
            deployment=route.deployment,
            tokens=prompt + ask.max_output_tokens,
            micro_usd=most_micro_usd(
                self._prices(model), input_tokens=prompt, output_tokens=ask.max_output_tokens
            ),
        )


def _fresh_tokens(ask: ModelAsk, route: Route) -> int:
    """About how many tokens of a prompt have to be read anew."""
    prompt = sum(estimate_prompt_tokens(segment.text) for segment in ask.segments)
    return max(prompt - route.predicted_tokens, 1)


def call_key(
    ask: ModelAsk, prefix: Prefix, model: str, scope: CallScope, settings: bytes = b""
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
        # Left out where there is none, so that the journal of older calls stays valid.
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
