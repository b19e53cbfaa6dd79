"""What all conversions between the proto's messages and plain values share."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, fields, is_dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from functools import cache, partial
from operator import attrgetter, methodcaller
from types import NoneType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from palimpsest._errors import PalimpsestError, from_parts
from palimpsest.v1 import common_pb2, errors_pb2

Value = TypeVar("Value")
_Message = TypeVar("_Message", bound=Message)

#: How much of a value an error shows, in characters.
SHOWN_CHARACTERS = 60
#: The client's names for the number 0 of an enum, by the fields that may have it.
_ZEROS = {"mode": "auto", "op": "put", "order": "auto", "reply_format": "auto", "strategy": "auto"}


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
    if is_dataclass(hint) and hint not in CONVERTERS:
        kind: Any = hint
        return partial(value_of, kind)
    if get_origin(hint) is dict:
        return dict
    return CONVERTERS.get(hint, _same)


def _namer(enum: Any, hint: Any) -> _Reader:
    """Returns what names the numbers of an enum as the type, a Literal or an Enum, has them.

    A number without a name there is of a newer service: it is "unknown" or "" where the type
    has these, else the first name. Where the type is `str`, it has all names, and 0 is "".
    """
    known = _names(enum)
    if hint is str:
        return lambda number: known.get(number, "unknown") if number else ""
    is_enum = isinstance(hint, type) and issubclass(hint, Enum)
    names = {str(one): one for one in (hint if is_enum else get_args(hint))}
    other = next(names[one] for one in ("unknown", "", *names) if one in names)
    # What is trusted, which nearly all is, has no field.
    names["unspecified"] = names.get("unspecified", names.get("trusted", other))
    return lambda number: names.get(known.get(number, ""), other)


def _names(enum: Any) -> dict[int, str]:
    """Returns the names of an enum without their prefix, by their numbers."""
    prefix = enum.values_by_number[0].name.removesuffix("UNSPECIFIED")
    return {one.number: one.name.removeprefix(prefix).lower() for one in enum.values}


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


def error_of(message: errors_pb2.ErrorStatus) -> PalimpsestError:
    """Returns the error that a call would raise."""
    try:
        reason = errors_pb2.ErrorReason.Name(message.reason).removeprefix("ERROR_REASON_")
    except ValueError:
        # From a newer service.
        reason = ""
    return from_parts(message.code, message.message, reason, dict(message.metadata))


#: What converts messages that are not read field by field; `_convert_chunks` adds its own.
CONVERTERS: dict[Any, _Reader] = {datetime: moment, PalimpsestError: error_of}


def message_of(kind: type[_Message], /, **given: Any) -> _Message:
    """Returns a message of these fields, with the numbers of enums that are given by name.

    Raises TypeError and ValueError that name the field. Those of protobuf say what is wrong
    with a value, and not which one it is.
    """
    known = kind.DESCRIPTOR.fields_by_name
    sent = {name: _sent(known[name], value) for name, value in given.items()}
    try:
        return kind(**sent)
    except (TypeError, ValueError):
        for name, value in sent.items():
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


def _sent(field: Any, value: Any) -> Any:
    """Returns the value of a field as protobuf takes it. Raises ValueError."""
    is_repeated = field.default_value == []
    if is_repeated and field.message_type is None and isinstance(value, str):
        # Each of its letters would be one.
        raise ValueError(f"{field.name} must be a collection of strings, not one string")
    if is_dataclass(value) and not isinstance(value, type):
        return {name: each for name, each in asdict(value).items() if each is not None}
    if field.enum_type is None or value is None:
        return value
    return [_number(field, one) for one in value] if is_repeated else _number(field, value)


def _number(field: Any, given: object) -> int:
    names = _names(field.enum_type)
    names[0] = _ZEROS.get(field.name, "")
    for number, name in names.items():
        if name and name == given:
            return number
    allowed = " or ".join(repr(name) for name in names.values() if name)
    raise ValueError(f"{field.name} must be {allowed}, not {given!r}")


def refuse_unknown(what: str, given: Iterable[str], known: type) -> None:
    """Raises TypeError for a name that a TypedDict of options does not have."""
    names = known.__annotations__
    for name in given:
        if name not in names:
            raise TypeError(f"there is no {what} {name!r}; there are {', '.join(names)}")


def duration(given: float | timedelta, setting: str) -> timedelta:
    """Returns a duration, given in seconds or as a timedelta, in whole milliseconds.

    Raises ValueError for what is no duration; the service bounds it.
    """
    seconds = given.total_seconds() if isinstance(given, timedelta) else given
    # False for NaN as well.
    if not 0 <= seconds < timedelta.max.total_seconds():
        raise ValueError(f"{setting} must be a number of seconds from 0 on, not {given!r}")
    return timedelta(milliseconds=round(seconds * 1000))
