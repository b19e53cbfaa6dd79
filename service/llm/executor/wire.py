"""Frames between worker and executor: a JSON object each, after its length.

A worker sends {"id", "order"} for a call, with "streams" to receive the text while the model writes
it, "trace" with its `traceparent`, and "about" with the fields of its log lines. It sends {"id",
"call_off"} with the call's key when no caller is left. An executor sends {"id": 0} once it accepts
orders, {"id", "heard", "restarts"} for new text, and last {"id"} with the outcome.
"""

import asyncio
import json
import struct
from typing import Any

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from service.domain.prompting.ends import end_of
from service.domain.prompting.faults import fault_of
from service.domain.prompting.flows import ModelReply
from service.llm.providers.failures import ModelFailure
from service.llm.providers.plans import CallRequest

#: Bytes of a frame. A prompt has at most a few megabytes.
MAX_FRAME_BYTES = 64 * 1024 * 1024
_LENGTH = struct.Struct(">I")
#: The id of the frame that belongs to no order: the executor accepts orders.
NO_ORDER = 0


class _Order(BaseModel):
    """An order as JSON; its bytes are hexadecimal."""

    model_config = ConfigDict(ser_json_bytes="hex", val_json_bytes="hex", allow_inf_nan=False)

    order: CallRequest


#: What cannot leave the process: the readers of a reply are with the worker.
_LOCAL: dict[str, Any] = {"order": {"on_text": True, "ask": {"find_text"}, "plan": {"on_text"}}}
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
    dumped = _Order.model_construct(order=order).model_dump(mode="json", exclude=_LOCAL)
    written: dict[str, Any] = dumped["order"]
    return written


def request_from_json(value: dict[str, Any]) -> CallRequest:
    """Returns the order that `request_to_json` wrote. Raises ValueError, without its texts."""
    try:
        return _Order.model_validate({"order": value}).order
    except ValidationError as error:
        raise _misfit("an order", error) from None


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
        raise _misfit("a reply", error) from None


def _misfit(what: str, error: ValidationError) -> ValueError:
    """Returns an error that names the fields; pydantic's own shows what is in them."""
    fields = (".".join(map(str, one["loc"])) for one in error.errors(include_input=False))
    return ValueError(f"{what} of another form: {', '.join(fields)}")
