"""Fuzzes the requests of every RPC: mutates their bytes, and calls the rules and handlers.

It runs in this process, without a network. The use cases below the handlers are a stand-in that
accepts anything: a handler that calls it has converted the whole request.
"""

import asyncio
import inspect
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, NoReturn
from unittest.mock import patch

from google.protobuf import message_factory
from google.protobuf.descriptor import FieldDescriptor, MethodDescriptor
from google.protobuf.message import DecodeError, Message

from service.domain.access.identity import LOCAL_IDENTITY, set_identity
from service.domain.log.read_tokens import ReadToken
from service.domain.values.errors import PalimpsestError
from service.domain.values.memory_specs import DefaultMemory
from service.domain.values.tenancy import DEFAULT_TENANT
from service.rpc import pipeline
from service.rpc.convert import chunks as convert
from service.rpc.interceptors.validation import validate
from service.rpc.pages import Pages
from service.settings.config import Limits
from tests.support.replies import SOURCE
from verification.fuzz.mutations import ODD
from verification.fuzz.runs import Target

_KEY = b"key of tests"
_TEXTS = (
    *("", "a", "main", "notes-1", "offline/extractive", "user", "where?", "$.rating", "/rows/0"),
    *(SOURCE, '{"type": "object"}', "[1, 2]", "0.17", "2026-11-30", "x" * 9000, "ü" * 5000, "A b"),
    *(
        "00000000-0000-0000-0000-000000000007",
        Pages(_KEY, Limits()).next("sessions:", "main"),
        *ODD[:24],
    ),
    ReadToken(session_key=DEFAULT_TENANT, incarnation=1, position=3).sign(_KEY),
)
#: What fields of such names take, mostly.
_FITTING: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("session", "memory", "name", "producer_id"), ("main", "notes-1")),
    **dict.fromkeys(("answer_id", "draft_id", "trajectory_id"), (str(DEFAULT_TENANT),)),
    **dict.fromkeys(("model", "navigation_model"), ("offline/extractive", "")),
    "schema_source": (SOURCE, "class A:\n    a: str"),
    "json_schema": ('{"properties": {"a": {"type": "string"}}}',),
    "response_schema": ('{"type": "object"}', "{}", ""),
    "query": ("Where is the museum?",),
    "question": ("Where is the museum?", ""),
    "role": ("user",),
    "text": ("It opened in 1903.",),
    "path": ("$.rating", "/attributes/a", "$['people'][0]"),
    "value_json": ("3", '["x"]', "null"),
    "page_token": ("",),
    **dict.fromkeys(("node", "parent"), ("0.17", "")),
    "day": ("2026-11-30", ""),
}
_NUMBERS = (0, 1, 2, 3, 7, 100, 1000, 4096, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, -1)
_DEPTH = 5


class _Reached(Exception):
    """A use case was called: the request was taken and converted."""


class _Anything:
    """Stands in for every use case."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._reached

    @staticmethod
    def _reached(*_: object, **__: object) -> NoReturn:
        raise _Reached


class _Context:
    """The context of a call without a waiting client."""

    def time_remaining(self) -> float | None:
        return None

    def cancelled(self) -> bool:
        return False


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """The bytes of a request."""

    method: str
    raw: bytes

    def __len__(self) -> int:
        return len(self.raw)


@cache
def methods() -> dict[str, tuple[MethodDescriptor, Any]]:
    """Returns the RPCs of every service and what handles them, by their names."""
    found: dict[str, tuple[MethodDescriptor, Any]] = {}
    for field, (_, descriptor) in pipeline.REGISTER.items():
        kind = next(one.type for one in fields(pipeline.Services) if one.name == field)
        made = _made_service(kind if isinstance(kind, type) else getattr(pipeline, str(kind)))
        for method in descriptor.methods:
            handler = getattr(made, method.name)
            # What has no handler of ours yet is the generated refusal.
            if not handler.__func__.__module__.endswith("_pb2_grpc"):
                found[method.full_name] = method, handler
    return found


def _made_service(kind: Any) -> Any:
    given: dict[str, Any] = {}
    for name in list(inspect.signature(kind).parameters):
        known = {
            "pages": Pages(_KEY, Limits()),
            "limits": Limits(),
            "language": "simple",
            "default_memory": DefaultMemory.NONE,
        }
        given[name] = known.get(name) or (asyncio.Event() if name == "stopping" else _Anything())
    return kind(**given)


def _filled(rng: random.Random, message: Message, depth: int = 0) -> Message:
    """Returns a message with some of its fields set, by chance to what they may hold or not."""
    rare = rng.choice((0.2, 0.5, 0.8, 0.95))
    for field in message.DESCRIPTOR.fields:
        is_wanted = field.name in _FITTING or field.name in ("chunks", "content", "edits")
        if rng.random() < (0.05 if is_wanted else rare):
            continue
        if _is_map(field):
            for _ in range(rng.choice((0, 1, 3))):
                key, value = _fields_of_entry(field)
                getattr(message, field.name)[_entry(rng, key)] = _entry(rng, value)
        elif field.is_repeated:
            for _ in range(rng.choice((0, 1, 1, 2, 3, 40 if depth < 2 else 2))):
                _add(rng, message, field, depth)
        elif field.message_type is not None:
            if depth < _DEPTH:
                getattr(message, field.name).SetInParent()
                _filled(rng, getattr(message, field.name), depth + 1)
        else:
            setattr(message, field.name, _scalar(rng, field))
    return message


def _add(rng: random.Random, message: Message, field: Any, depth: int) -> None:
    held = getattr(message, field.name)
    if field.message_type is None:
        held.append(_scalar(rng, field))
    elif depth < _DEPTH:
        _filled(rng, held.add(), depth + 1)


def _is_map(field: Any) -> bool:
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


def _fields_of_entry(field: Any) -> tuple[Any, Any]:
    fields = field.message_type.fields_by_name
    return fields["key"], fields["value"]


def _entry(rng: random.Random, field: Any) -> Any:
    is_text = field.type == FieldDescriptor.TYPE_STRING
    return _storable(rng) if is_text else _scalar(rng, field)


def _storable(rng: random.Random) -> str:
    return rng.choice(_TEXTS).encode(errors="replace").decode()


def _scalar(rng: random.Random, field: Any) -> Any:
    match field.cpp_type:
        case FieldDescriptor.CPPTYPE_STRING if field.type == FieldDescriptor.TYPE_BYTES:
            return rng.choice((b"", b"\0", b"x" * 32, rng.randbytes(32)))
        case FieldDescriptor.CPPTYPE_STRING:
            fitting = _FITTING.get(field.name)
            return rng.choice(fitting) if fitting and rng.random() < 0.9 else _storable(rng)
        case FieldDescriptor.CPPTYPE_BOOL:
            return rng.random() < 0.5
        case FieldDescriptor.CPPTYPE_ENUM:
            known = [one.number for one in field.enum_type.values]
            return rng.choice(known) if rng.random() < 0.95 else 99
        case FieldDescriptor.CPPTYPE_FLOAT | FieldDescriptor.CPPTYPE_DOUBLE:
            return rng.choice((0.0, 0.5, -1.0, 1e308, float("nan"), float("inf")))
    wide = field.cpp_type in (FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_UINT64)
    signed = field.cpp_type in (FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_INT64)
    bits = 64 if wide else 32
    number = rng.choice(_NUMBERS[: rng.choice((3, 6, len(_NUMBERS)))]) % 2**bits
    return number - 2**bits if signed and number >= 2 ** (bits - 1) else number


def _made(rng: random.Random) -> Request:
    name = rng.choice(list(methods()))
    kind = message_factory.GetMessageClass(methods()[name][0].input_type)
    raw = bytearray(_filled(rng, kind()).SerializeToString())
    if raw and rng.random() < 0.3:
        for _ in range(rng.choice((1, 1, 2, 8))):
            at = rng.randrange(len(raw))
            match rng.randrange(4):
                case 0:
                    raw[at] = rng.randrange(256)
                case 1:
                    del raw[at : at + rng.choice((1, 2, 10))]
                case 2:
                    raw[at:at] = raw[: rng.randrange(min(len(raw), 200) + 1)]
                case _:
                    raw[at:at] = rng.randbytes(rng.choice((1, 5)))
            if not raw:
                break
    return Request(method=name, raw=bytes(raw))


def _check(made: Request) -> bool:
    method, handle = methods()[made.method]
    message = message_factory.GetMessageClass(method.input_type).FromString(made.raw)
    validate(message)
    set_identity(LOCAL_IDENTITY)
    if method.client_streaming:
        return _chunks(message)
    try:
        _run(handle(message, _Context()))
    except _Reached:
        return True
    return False


async def _here(work: Callable[..., Any], *arguments: Any) -> Any:
    return work(*arguments)


def _run(called: Any) -> None:
    """A handler up to where it waits for something that is none of its own."""
    if inspect.isasyncgen(called):
        called = called.__anext__()
    try:
        # There is no loop, and what a thread does counts as well.
        with patch.object(asyncio, "to_thread", _here):
            called.send(None)
    except (StopIteration, StopAsyncIteration):
        pass
    finally:
        called.close() if inspect.iscoroutine(called) else None


def _chunks(message: Message) -> bool:
    """Yields the messages of a producer's stream, as its handler reads them."""
    for field, value in message.ListFields():
        if field.name == "batch":
            submitted = convert.submitted_chunks(value.chunks, Limits(), numbered=True)
            for one in submitted:
                one.chunk.as_text().encode()
            return bool(submitted)
    return False


TARGETS: Sequence[Target] = (
    Target(name="requests", make=_made, check=_check, refusals=(PalimpsestError, DecodeError)),
)
