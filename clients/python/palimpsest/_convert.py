"""What all conversions between the proto's messages and plain values share."""

from collections.abc import Callable, Mapping
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, TypeVar

from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from palimpsest._errors import PalimpsestError, from_parts
from palimpsest._values_common import CharacterRange, OperationState, PositionRange, ReadPoint
from palimpsest.v1 import common_pb2, errors_pb2

Value = TypeVar("Value")
_Message = TypeVar("_Message")

#: Of a value that an error shows, in characters.
SHOWN_CHARACTERS = 60


def value_of(kind: Callable[..., Value], message: Message, /, **others: Any) -> Value:
    """Returns a dataclass whose fields have those of the message with the same name.

    Repeated fields become tuples, optional ones that are not set None. `others` are the
    fields that differ from the message's.
    """
    described: Any = type(message)
    same = {
        name: tuple(getattr(message, name))
        if repeated
        else None
        if optional and not message.HasField(name)
        else getattr(message, name)
        for name, optional, repeated in _same(kind, described, frozenset(others))
    }
    return kind(**same, **others)


@cache
def _same(kind: Any, message: Any, others: frozenset[str]) -> tuple[tuple[str, bool, bool], ...]:
    """Returns name, presence and repetition of the fields that a value has of its message."""
    known, empty = message.DESCRIPTOR.fields_by_name, message()
    names = [one.name for one in fields(kind) if one.name not in others]
    return tuple(
        (name, known[name].has_presence, hasattr(getattr(empty, name), "append")) for name in names
    )


def moment(message: Timestamp) -> datetime:
    """Returns a time, in UTC."""
    return message.ToDatetime(tzinfo=UTC)


def positions(message: Message, name: str = "positions") -> PositionRange | None:
    """Returns the positions of a message; None where it is of none."""
    return if_set(message, name, lambda one: value_of(PositionRange, one))


def characters(message: Message, name: str = "characters") -> CharacterRange | None:
    """Returns the characters of a message; None where it names none."""
    return if_set(message, name, lambda one: value_of(CharacterRange, one))


def read_point(message: common_pb2.ReadPoint) -> ReadPoint:
    """Returns what a read returned."""
    return value_of(ReadPoint, message)


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


STATES: dict[OperationState, Any] = numbers_of(common_pb2.OperationState, "OPERATION_STATE_")


def error_of(message: errors_pb2.ErrorStatus) -> PalimpsestError:
    """Returns the error that a call would raise."""
    try:
        reason = errors_pb2.ErrorReason.Name(message.reason).removeprefix("ERROR_REASON_")
    except ValueError:
        # Of a newer service.
        reason = ""
    return from_parts(message.code, message.message, reason, dict(message.metadata))


def if_set(message: Message, name: str, convert: Callable[[Any], Value]) -> Value | None:
    """Returns a converted field of the message, or None where it is not set."""
    return convert(getattr(message, name)) if message.HasField(name) else None


def number_of(setting: str, table: Mapping[Any, Any], given: object) -> Any:
    """Returns what the proto calls a setting's value. Raises ValueError."""
    # Not `given in table`, which fails for what has no hash.
    for name, number in table.items():
        if name == given:
            return number
    allowed = " or ".join(repr(name) for name in table if name is not None)
    raise ValueError(f"{setting} must be {allowed}, not {given!r}")


def name_of(table: Mapping[Any, Any], number: int) -> Any:
    """Returns the name of what the proto calls `number`; the first one where it is open."""
    return next((name for name, known in table.items() if known == number), next(iter(table)))


def known_name(table: Mapping[Any, Any], number: int) -> Any:
    """Returns the name of what the proto calls `number`; "unknown" where the service is newer."""
    return next((name for name, known in table.items() if known == number), "unknown")


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
