"""The gateway: every model call passes here.

A call is looked up in the journal, predicted, made, written down durably, and only
then returned: a worker that dies behind it finds the reply there and pays nothing.
"""

import asyncio
import hashlib
import json
import struct
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

import structlog
from opentelemetry import metrics, trace

from service.domain.flows import ModelAsk, ModelReply
from service.domain.ledger import Call, CallScope
from service.llm.prefix_cache import Prefix, PrefixIndex, policy_of, predict, prefix_of
from service.llm.transport import Completion, KnowsForms, ModelFailure, Transport

_log = structlog.get_logger("palimpsest.llm")

#: Wait before the second try of a call; doubles with each further one.
BACKOFF_SECONDS = 0.5
MAX_BACKOFF_SECONDS = 30.0
#: The longest wait that a provider is granted when it says when to come again.
MAX_RETRY_AFTER_SECONDS = 120.0
#: Share of a wait that is added at most, so that calls that failed together do not
#: come again together.
JITTER = 0.25


class CallLedger(Protocol):
    """Where calls are kept, durably."""

    async def find_reply(self, scope: CallScope, key: bytes) -> ModelReply | None:
        """The reply that was paid for already; None when there is none."""
        ...

    async def record(self, scope: CallScope, call: Call) -> ModelReply | None:
        """Writes a call; the reply that counts, or None for a failed call."""
        ...


@dataclass(frozen=True, slots=True)
class _Made:
    """A call that came back, or did not."""

    completion: Completion | None
    failure: ModelFailure | None
    latency_ms: int


class Gateway:
    """Makes model calls for one worker process."""

    def __init__(
        self,
        transport: Transport,
        ledger: CallLedger,
        index: PrefixIndex,
        *,
        tries: int,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._transport = transport
        self._ledger = ledger
        self._index = index
        self._tries = tries
        self._sleep = sleep
        self._tracer = trace.get_tracer("palimpsest.llm")
        meter = metrics.get_meter("palimpsest.llm")
        self._tokens = meter.create_counter(
            "palimpsest.llm.tokens", description="Tokens, by model and kind"
        )
        self._seconds = meter.create_histogram(
            "palimpsest.llm.duration", unit="s", description="Duration of calls"
        )
        self._replays = meter.create_counter(
            "palimpsest.llm.replays", description="Replies found in the journal"
        )

    def structured(self, model: str) -> bool:
        """Whether to ask this model for replies by a schema.

        A property of the transport; one that has no such method has no such models.
        """
        transport = self._transport
        return isinstance(transport, KnowsForms) and transport.structured(model)

    async def call(self, ask: ModelAsk, *, model: str, scope: CallScope) -> ModelReply:
        """The reply to `ask`, paid for at most once for its occasion.

        Retries what may pass; raises ModelFailure when it does not.
        """
        prefix = prefix_of(
            ask.segments, model=model, tenant_id=scope.tenant_id, owner_id=scope.owner_id
        )
        key = call_key(ask, prefix, model, scope)
        known = await self._ledger.find_reply(scope, key)
        if known is not None:
            self._replays.add(1, {"model": model})
            return known
        policy = policy_of(model)
        warm = await self._index.lookup(prefix.memory_key, prefix.group_key, prefix.ids)
        predicted = predict(prefix, warm, policy)
        for attempt in range(1, self._tries + 1):
            made = await self._try(ask, model)
            reply = await self._ledger.record(scope, _record(ask, model, key, predicted, made))
            if made.completion is not None and reply is not None:
                self._count(made.completion)
                await self._index.touch(
                    prefix.memory_key, prefix.group_key, prefix.ids, policy.ttl_seconds
                )
                return reply
            assert made.failure is not None, "a call without a completion has failed"
            if not made.failure.retryable or attempt == self._tries:
                raise made.failure
            await self._sleep(_wait_seconds(made.failure, attempt, key))
        raise AssertionError("the last try returns or raises")

    async def _try(self, ask: ModelAsk, model: str) -> _Made:
        attributes = {"gen_ai.request.model": model, "palimpsest.purpose": ask.purpose.value}
        start = time.perf_counter()
        completion: Completion | None = None
        failure: ModelFailure | None = None
        with self._tracer.start_as_current_span("palimpsest.call", attributes=attributes) as span:
            try:
                completion = await self._transport.complete(ask, model)
                span.set_attribute("gen_ai.usage.input_tokens", completion.input_tokens)
                span.set_attribute("gen_ai.usage.output_tokens", completion.output_tokens)
            except ModelFailure as error:
                failure = error
                _log.warning("model call failed", model=model, cause=str(error))
        seconds = time.perf_counter() - start
        self._seconds.record(seconds, attributes)
        return _Made(completion, failure, round(seconds * 1000))

    def _count(self, completion: Completion) -> None:
        for kind, tokens in (
            ("input", completion.input_tokens),
            ("output", completion.output_tokens),
            ("cached", completion.cached_tokens or 0),
        ):
            self._tokens.add(tokens, {"model": completion.model, "kind": kind})


def call_key(ask: ModelAsk, prefix: Prefix, model: str, scope: CallScope) -> bytes:
    """SHA-256 over everything that affects the output, and the occasion.

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
    )
    key = hashlib.sha256()
    for part in parts:
        key.update(struct.pack(">Q", len(part)))
        key.update(part)
    return key.digest()


def _schema_bytes(schema: dict[str, Any]) -> bytes:
    # In its own order: a model may write the parts of a reply in the order of the schema.
    return json.dumps(schema, separators=(",", ":")).encode()


def _record(ask: ModelAsk, model: str, key: bytes, predicted: int, made: _Made) -> Call:
    done = made.completion
    return Call(
        key=key,
        purpose=ask.purpose,
        template=ask.template,
        model=model,
        reply=done.text if done else None,
        failure=str(made.failure) if made.failure else None,
        input_tokens=done.input_tokens if done else 0,
        predicted_cached_tokens=min(predicted, done.input_tokens) if done else 0,
        reported_cached_tokens=done.cached_tokens if done else None,
        cache_write_tokens=done.cache_write_tokens if done else None,
        output_tokens=done.output_tokens if done else 0,
        cost_micro_usd=done.cost_micro_usd if done else None,
        latency_ms=made.latency_ms,
    )


def _wait_seconds(failure: ModelFailure, attempt: int, key: bytes) -> float:
    """How long to wait behind the `attempt`-th try: never less than the provider asks.

    The jitter is taken from the call's key: differs between calls, not between runs.
    """
    backoff = min(BACKOFF_SECONDS * 2.0 ** (attempt - 1), MAX_BACKOFF_SECONDS)
    asked = min(failure.retry_after_seconds or 0.0, MAX_RETRY_AFTER_SECONDS)
    return max(backoff, asked) * (1 + JITTER * key[attempt % len(key)] / 255)
