"""Frames between worker and executor: a JSON object each, after its length.

A worker sends {"id", "order"} for a call, with a flag to receive the text while the model writes
it, "trace" with its `traceparent`, and "about" with the fields of its log lines. It sends {"id",
"call_off"} with the call's key when no caller is left. An executor sends {"id": 0} once it accepts
orders, {"id", "heard", "restarts"} for new text, and last {"id"} with the outcome.

During an upgrade either may be of the release before, so the form of an order stays as it is.
"""

import asyncio
import json
import struct
from typing import Any
from uuid import UUID

from pydantic import TypeAdapter, ValidationError

from service.domain.calls.ledger import CallScope, Lease
from service.domain.calls.prefix_index import Prefix
from service.domain.prompting.ends import end_of
from service.domain.prompting.faults import fault_of
from service.domain.prompting.flows import (
    ModelReply,
    ModelRequest,
    Purpose,
    Segment,
    SegmentKind,
)
from service.llm.providers.failures import ModelFailure
from service.llm.providers.plans import CallPlan, CallRequest, Route

#: Bytes of a frame. A prompt has at most a few megabytes.
MAX_FRAME_BYTES = 64 * 1024 * 1024
_LENGTH = struct.Struct(">I")
#: The id of the frame that belongs to no order: the executor accepts orders.
NO_ORDER = 0


#: What leaves the process of a plan: the reader of a stream is with the worker.
_PLAN_FIELDS = tuple(name for name in CallPlan.__slots__ if name != "on_text")
_REPLY = TypeAdapter(ModelReply)


async def read_frame(reader: asyncio.StreamReader) -> dict[str, Any] | None:
    """Returns the next frame; None at the end. Raises ValueError for anything else."""
    try:
        (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        if length > MAX_FRAME_BYTES:
            raise ValueError(f"a frame of {length} bytes; at most {MAX_FRAME_BYTES} are read")
        raw = await reader.readexactly(length)
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    value = json.loads(raw)
    if not isinstance(value, dict):
        raise ValueError("a frame that is no JSON object")
    return value


def frame(value: dict[str, Any]) -> bytes:
    """Returns the bytes of a frame."""
    raw = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    return _LENGTH.pack(len(raw)) + raw


def request_to_json(order: CallRequest) -> dict[str, Any]:
    """Returns an order as plain JSON."""
    ask, scope, prefix, route, plan = order.ask, order.scope, order.prefix, order.route, order.plan
    return {
        "ask": {
            "purpose": ask.purpose.value,
            "template": ask.template,
            "segments": [
                [one.kind.value, one.text, one.reusable, one.lasting] for one in ask.segments
            ],
            "max_output_tokens": ask.max_output_tokens,
            "reply_schema": ask.reply_schema,
            "attempt": ask.attempt,
        },
        "model": order.model,
        "scope": {
            "tenant_id": str(scope.tenant_id),
            "session_key": str(scope.session_key),
            "memory_id": None if scope.memory_id is None else str(scope.memory_id),
            "occasion": scope.occasion,
            "incarnation": scope.incarnation,
            "epoch": scope.epoch,
        },
        "key": order.key.hex(),
        "fence": order.lease.fence,
        "lease_deadline": order.lease_deadline,
        "at_once": order.at_once,
        "probes": order.probes,
        "prefix": {
            "memory_key": prefix.memory_key,
            "group_key": prefix.group_key,
            "ids": [one.hex() for one in prefix.ids],
            "tokens": list(prefix.tokens),
        },
        "route": {name: getattr(route, name) for name in Route.__slots__},
        "plan": {name: getattr(plan, name) for name in _PLAN_FIELDS},
    }


def request_from_json(value: dict[str, Any]) -> CallRequest:
    """Returns the order that `request_to_json` wrote. Raises KeyError, TypeError, ValueError."""
    ask, scope, prefix, plan = value["ask"], value["scope"], value["prefix"], value["plan"]
    memory_id = scope["memory_id"]
    return CallRequest(
        ask=ModelRequest(
            purpose=Purpose(ask["purpose"]),
            template=ask["template"],
            segments=tuple(
                Segment(kind=SegmentKind(kind), text=text, reusable=reusable, lasting=lasting)
                for kind, text, reusable, lasting in ask["segments"]
            ),
            max_output_tokens=ask["max_output_tokens"],
            reply_schema=ask["reply_schema"],
            attempt=ask["attempt"],
        ),
        model=value["model"],
        scope=CallScope(
            tenant_id=UUID(scope["tenant_id"]),
            session_key=UUID(scope["session_key"]),
            memory_id=None if memory_id is None else UUID(memory_id),
            occasion=scope["occasion"],
            incarnation=scope["incarnation"],
            epoch=scope.get("epoch"),
        ),
        key=bytes.fromhex(value["key"]),
        lease=Lease(fence=value["fence"]),
        lease_deadline=value["lease_deadline"],
        at_once=value["at_once"],
        probes=value["probes"],
        prefix=Prefix(
            memory_key=prefix["memory_key"],
            group_key=prefix["group_key"],
            ids=tuple(bytes.fromhex(one) for one in prefix["ids"]),
            tokens=tuple(prefix["tokens"]),
        ),
        route=Route(**value["route"]),
        plan=CallPlan(**{**plan, "marks": tuple(plan["marks"])}),
    )


def failure_to_json(failure: ModelFailure) -> dict[str, Any]:
    """Returns a failed call as plain JSON."""
    return {
        "failure": str(failure),
        "fault": failure.fault.value,
        "retryable": failure.retryable,
        "retry_after_seconds": failure.retry_after_seconds,
    }


def failure_from_json(value: dict[str, Any]) -> ModelFailure:
    """Returns the failure that `failure_to_json` wrote."""
    return ModelFailure(
        value["failure"],
        retryable=value["retryable"],
        retry_after_seconds=value["retry_after_seconds"],
        fault=fault_of(value["fault"]),
    )


def reply_to_json(reply: ModelReply) -> dict[str, Any]:
    """Returns a reply as plain JSON."""
    written: dict[str, Any] = _REPLY.dump_python(reply, mode="json")
    return written


def reply_from_json(value: dict[str, Any]) -> ModelReply:
    """Returns the reply that `reply_to_json` wrote; other fields are ignored. Raises ValueError."""
    try:
        # Another release may know more ends.
        return _REPLY.validate_python({**value, "end": end_of(value["end"])})
    except ValidationError as error:
        # Its own message shows what is in the fields.
        fields = (".".join(map(str, one["loc"])) for one in error.errors(include_input=False))
        raise ValueError(f"a reply of another form: {', '.join(fields)}") from None
