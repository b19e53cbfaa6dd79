"""What all conversions between the proto's messages and plain values share."""

import json
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from functools import cache, partial
from operator import attrgetter, methodcaller
from types import NoneType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from palimpsest._errors import PalimpsestError, from_parts
from palimpsest._values_common import OperationState
from palimpsest.v1 import common_pb2, errors_pb2

Value = TypeVar("Value")
_Message = TypeVar("_Message")

#: Of a value that an error shows, in characters.
SHOWN_CHARACTERS = 60


def value_of(kind: Callable[..., Value], message: Message, /, **others: Any) -> Value:
    """Returns a dataclass whose fields have those of the message with the same name.

    The types of the fields say what becomes of them: a message becomes a dataclass, a time a
    datetime, the number of an enum its name, JSON text a value, a repeated field a tuple. An
    optional field that is not set becomes None. `others` are the fields that differ.
    """
    message_type: Any = type(message)
    return kind(**_read(_readers(kind, message_type, frozenset(others)), message), **others)


def common_fields(kind: Any, message: Message) -> dict[str, Any]:
    """Returns the fields of a dataclass that the message has, converted as by `value_of`."""
    message_type: Any = type(message)
    known = message_type.DESCRIPTOR.fields_by_name
    missing = frozenset(one.name for one in fields(kind) if one.name not in known)
    return _read(_readers(kind, message_type, missing), message)


_Reader = Callable[[Any], Any]


def _read(readers: Mapping[str, _Reader], message: Message) -> dict[str, Any]:
    return {name: read(message) for name, read in readers.items()}


@cache
def _readers(kind: Any, message: Any, others: frozenset[str]) -> Mapping[str, _Reader]:
    known, hints = message.DESCRIPTOR.fields_by_name, get_type_hints(kind)
    names = [one.name for one in fields(kind) if one.name not in others]
    return {name: _reader(known.get(f"{name}_json") or known[name], hints[name]) for name in names}


def _reader(field: Any, hint: Any) -> _Reader:
    """Returns what reads a field of a message as a value of the type `hint`."""
    get = attrgetter(field.name)
    is_set: _Reader = methodcaller("HasField", field.name) if field.has_presence else get
    if get_origin(hint) is tuple:
        each = _converter(field, get_args(hint)[0])
        return lambda message: tuple(map(each, get(message)))
    optional = NoneType in get_args(hint)
    if optional:
        hint = next(one for one in get_args(hint) if one is not NoneType)
    convert = _converter(field, hint)
    if optional or hint is Any:
        return lambda message: convert(get(message)) if is_set(message) else None
    return lambda message: convert(get(message))


def _converter(field: Any, hint: Any) -> _Reader:
    if field.enum_type is not None:
        return _namer(field.enum_type, hint)
    if field.name.endswith("_json"):
        return json.loads
    if is_dataclass(hint):
        kind: Any = hint
        return partial(value_of, kind)
    if get_origin(hint) is dict:
        return dict
    known: dict[Any, _Reader] = {datetime: moment, PalimpsestError: error_of}
    return known.get(hint, _same)


def _namer(enum: Any, hint: Any) -> _Reader:
    """Returns what names the numbers of an enum as the type, a Literal or an Enum, has them.

    A number without a name there is of a newer service: it is "unknown" or "" where the type
    has these, else the first name. Where the type is `str`, it has all names, and 0 is "".
    """
    prefix = enum.values_by_number[0].name.removesuffix("UNSPECIFIED")
    known = {one.number: one.name.removeprefix(prefix).lower() for one in enum.values}
    if hint is str:
        return lambda number: known.get(number, "unknown") if number else ""
    is_enum = isinstance(hint, type) and issubclass(hint, Enum)
    names = {str(one): one for one in (hint if is_enum else get_args(hint))}
    other = next(names[one] for one in ("unknown", "", *names) if one in names)
    return lambda number: names.get(known.get(number, ""), other)


def _same(value: Any) -> Any:
    return value


def moment(message: Timestamp) -> datetime:
    """Returns a time, in UTC."""
    return message.ToDatetime(tzinfo=UTC)


def consistency(after: str, fully_applied: bool) -> common_pb2.ReadConsistency | None:
    """Returns how fresh a read must be; None when the caller does not say."""
    if not (after or fully_applied):
        return None
    return common_pb2.ReadConsistency(at_least=after, fully_applied=fully_applied)


def numbers_of(enum: Any, prefix: str, unset: str = "") -> dict[Any, Any]:
    """Returns the numbers of an enum of the proto by their names without `prefix`.

    `unset` is the name of the number 0, which has none otherwise.
    """
    names = {name.removeprefix(prefix).lower(): number for name, number in enum.items() if number}
    return {unset: 0, **names} if unset else names


#: States to list by; None: any.
STATES: dict[OperationState | None, Any] = {
    None: common_pb2.OPERATION_STATE_UNSPECIFIED,
    **numbers_of(common_pb2.OperationState, "OPERATION_STATE_"),
}


def error_of(message: errors_pb2.ErrorStatus) -> PalimpsestError:
    """Returns the error that a call would raise."""
    try:
        reason = errors_pb2.ErrorReason.Name(message.reason).removeprefix("ERROR_REASON_")
    except ValueError:
        # Of a newer service.
        reason = ""
    return from_parts(message.code, message.message, reason, dict(message.metadata))


def number_of(setting: str, table: Mapping[Any, Any], given: object) -> Any:
    """Returns what the proto calls a setting's value. Raises ValueError."""
    # Not `given in table`, which fails for what has no hash.
    for name, number in table.items():
        if name == given:
            return number
    allowed = " or ".join(repr(name) for name in table if name is not None)
    raise ValueError(f"{setting} must be {allowed}, not {given!r}")


def message_of(kind: Callable[..., _Message], **given: Any) -> _Message:
    """Returns a message of these fields. Raises TypeError and ValueError that name the field.

    Those of protobuf say what is wrong with a value, and not which one it is.
    """
    try:
        return kind(**given)
    except (TypeError, ValueError):
        for name, value in given.items():
            shown = repr(value)
            if len(shown) > SHOWN_CHARACTERS:
                shown = f"{shown[:SHOWN_CHARACTERS]}…"
            try:
                kind(**{name: value})
            except TypeError as error:
                raise TypeError(f"{name} is of another type: {shown}") from error
            except UnicodeEncodeError as error:
                why = f"{error.reason} in {name}"
                place = error.start, error.end
                raise UnicodeEncodeError(error.encoding, error.object, *place, why) from error
            except ValueError as error:
                raise ValueError(f"{name} cannot be {shown}: {error}") from error
        raise


def milliseconds(given: float | timedelta, setting: str) -> int:
    """Returns a duration, given in seconds or as a timedelta, in whole milliseconds.

    Raises ValueError for what is no duration; the service bounds it.
    """
    seconds = given.total_seconds() if isinstance(given, timedelta) else given
    # False for NaN as well.
    if not 0 <= seconds <= timedelta.max.total_seconds():
        raise ValueError(f"{setting} must be a number of seconds from 0 on, not {given!r}")
    return round(seconds * 1000)
