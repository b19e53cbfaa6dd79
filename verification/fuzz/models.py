"""Fuzzes replies of model servers, at the transport, and frames between worker and executor."""

import asyncio
import json
import logging
import random
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any
from uuid import UUID

from service.domain.calls.ledger import CallScope, Lease
from service.domain.calls.prefix_index import Prefix
from service.domain.prompting.flows import ModelReply, ModelRequest, Purpose, Segment, SegmentKind
from service.domain.prompting.replies import storable
from service.llm.executor.wire import (
    frame,
    read_frame,
    reply_from_json,
    reply_to_json,
    request_from_json,
    request_to_json,
)
from service.llm.providers.failures import ModelFailure
from service.llm.providers.library import litellm_library
from service.llm.providers.plans import CallPlan, CallRequest, Route
from service.llm.providers.streams import BrokenStream, whole_response
from service.llm.providers.transport import LitellmTransport
from service.settings.config import Config
from verification.fuzz.mutations import ODD, json_of, text_of, value_of
from verification.fuzz.runs import Broken, Target

_ASK = ModelRequest(
    purpose=Purpose.REVISE,
    template="t/1",
    segments=(Segment(kind=SegmentKind.TASK, text="What is the harbour museum?"),),
    max_output_tokens=100,
)
_RESPONSES: tuple[Any, ...] = (
    {
        "choices": [
            {
                "index": 0,
                "finish_reason": "stop",
                "message": {"role": "assistant", "content": "A ship. \ud83d\ude00"},
            }
        ],
        "usage": {
            "prompt_tokens": 100,
            "completion_tokens": 5,
            "total_tokens": 105,
            "prompt_tokens_details": {"cached_tokens": 64, "cache_write_tokens": 3},
        },
        "model": "some-model",
    },
    {"choices": [{"finish_reason": "length", "message": {"content": None}}], "usage": None},
    {"choices": [{"delta": {"content": "A sh"}, "finish_reason": None}]},
    {"choices": [{"delta": {"content": "ip"}, "finish_reason": "stop"}], "usage": {"x": 1}},
    {"choices": [], "error": {"message": "overloaded"}},
)
_WORDS: tuple[Any, ...] = (
    *(
        "choices",
        "message",
        "content",
        "usage",
        "prompt_tokens",
        "finish_reason",
        "length",
        "delta",
    ),
    *("cached_tokens", "completion_tokens", "tool_calls", "stop", [{"type": "text", "text": "x"}]),
)
_ORDER = CallRequest(
    ask=_ASK,
    model="offline/extractive",
    scope=CallScope(tenant_id=UUID(int=1), session_key=UUID(int=2), memory_id=None, occasion="x"),
    key=b"k" * 32,
    lease=Lease(fence=3),
    lease_deadline=4.5,
    at_once=False,
    prefix=Prefix(memory_key="m", group_key="g", ids=(b"i" * 8,), tokens=(12,)),
    route=Route(),
    plan=CallPlan(),
)
_REPLY = ModelReply(text="A ship.", model="some/model")
_FRAMES: tuple[Any, ...] = (
    {"id": 1, "order": request_to_json(_ORDER)},
    {"id": 2, **reply_to_json(_REPLY)},
    {"call_off": "6b" * 32},
)
_FRAME_WORDS = (
    "id",
    "order",
    "ask",
    "purpose",
    "segments",
    "plan",
    "marks",
    "key",
    "fence",
    "text",
)


class _Stream:
    """A stream of litellm's with given parts."""

    model = "some-model"

    def __init__(self, parts: Sequence[Any]) -> None:
        self.chunks = parts

    async def __aiter__(self) -> Any:
        for part in self.chunks:
            yield part

    async def aclose(self) -> None:
        """Nothing is open."""


@cache
def _transport() -> LitellmTransport:
    transport = LitellmTransport(Config())
    transport._litellm = litellm_library()
    return transport


def _bodies(rng: random.Random) -> list[str]:
    return [json_of(rng, _RESPONSES, _WORDS) for _ in range(rng.choice((1, 1, 2, 3)))]


def _completed(bodies: list[str]) -> bool:
    """Returns what the transport makes of a server's response, as litellm hands it on."""
    litellm = litellm_library()
    values = []
    for body in bodies:
        try:
            values.append(json.loads(body))
        except (ValueError, RecursionError):
            return False
    if not isinstance(values[0], dict):
        return False
    try:
        response = litellm.ModelResponse(**values[0])
    except Exception:
        # litellm's own reading, whose errors it maps before the transport sees them.
        return False
    if not getattr(response, "choices", None):
        return False
    done = _transport()._completion(response, _ASK, "openai/some-model")
    done.text.encode()
    if "\0" in done.text or done.input_tokens < 1 or (done.cached_tokens or 0) > done.input_tokens:
        raise Broken("a completion can be stored, and says no more tokens than there are")
    return True


# litellm says each finish reason that it does not know.
logging.getLogger("LiteLLM").setLevel(logging.ERROR)


def _streamed(bodies: list[str]) -> bool:
    """Returns what comes of a stream of such parts."""
    litellm = litellm_library()
    parts = []
    for body in bodies:
        try:
            parts.append(litellm.ModelResponseStream(**json.loads(body)))
        except Exception:
            # As above.
            return False
    heard: list[str] = []
    response = asyncio.run(
        whole_response(litellm, _Stream(parts), lambda text: heard.append(storable(text)))
    )
    done = _transport()._completion(response, replace(_ASK), "openai/some-model")
    if "".join(heard) not in done.text:
        raise Broken("a stream comes to what was heard of it")
    return True


def _frame_bytes(rng: random.Random) -> bytes:
    if rng.random() < 0.5:
        raw = json_of(rng, _FRAMES, _FRAME_WORDS).encode(errors="replace")
        raw = len(raw).to_bytes(4, "big") + raw
    else:
        try:
            raw = frame(value_of(rng, _FRAMES, _FRAME_WORDS))
        except (RecursionError, UnicodeEncodeError, TypeError, AttributeError):
            raw = frame({"id": 1})
    if rng.random() < 0.3:
        raw = text_of(rng, (raw.decode("latin-1"),), ODD[:8]).encode("latin-1", errors="replace")
    return raw


def _framed(raw: bytes) -> bool:
    async def read() -> dict[str, Any] | None:
        reader = asyncio.StreamReader()
        reader.feed_data(raw)
        reader.feed_eof()
        return await read_frame(reader)

    said = asyncio.run(read())
    if said is not None and "order" in said:
        try:
            order = request_from_json(said["order"])
        except (KeyError, TypeError, ValueError, AttributeError):
            # The server answers such an order with "broken".
            return False
        if request_from_json(request_to_json(order)) != order:
            raise Broken("an order is read again as it was")
    elif said is not None and "text" in said:
        try:
            reply_from_json(said)
        except (KeyError, ValueError):
            return False
    return said is not None


TARGETS: Sequence[Target] = (
    Target(
        name="model-responses",
        make=_bodies,
        check=_completed,
        refusals=(ModelFailure,),
        size=lambda made: sum(map(len, made)),
    ),
    Target(
        name="model-streams",
        make=_bodies,
        check=_streamed,
        refusals=(ModelFailure, BrokenStream),
        size=lambda made: sum(map(len, made)),
    ),
    Target(name="wire", make=_frame_bytes, check=_framed, refusals=(ValueError,)),
)
