"""What several rooms share: times, ranges, read points, usage."""

from collections.abc import Iterable
from dataclasses import is_dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any, TypeVar

from google.protobuf import message_factory
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from palimpsest.v1 import chunks_pb2, common_pb2
from service.domain.access.trust import Trust
from service.domain.operations.retention import Retention
from service.usecases.memories.consistency import Consistency
from storage.calls.calls import UsageLine

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DAY_SECONDS = 86_400


_Member = TypeVar("_Member", bound=Enum)
_Message = TypeVar("_Message", bound=Message)


def message_of(kind: type[_Message], value: object, /, **others: Any) -> _Message:
    """Returns a message with the attributes of `value` that its fields are named after.

    `others` are fields that differ from the attribute or have none; None leaves one unset. A
    field in neither raises AttributeError, so that a new field is never left unset silently.
    Chunks are written by hand: they are too many for a loop over fields.
    """
    for field in kind.DESCRIPTOR.fields:
        given = others[field.name] if field.name in others else getattr(value, field.name)
        others[field.name] = _as_field(field, given)
    return kind(**others)


def _as_field(field: Any, value: Any) -> Any:
    """Returns a value as a message's constructor takes it."""
    if isinstance(value, Enum):
        names = field.enum_type.values_by_name
        prefix = _prefix(field.enum_type)
        # Where the proto has no name for it, what is unset is AUTO.
        is_unset = value.name == "AUTO" and f"{prefix}AUTO" not in names
        return 0 if is_unset else names[f"{prefix}{value.name}"].number
    if isinstance(value, datetime):
        return timestamp(value)
    if is_dataclass(value):
        return message_of(message_factory.GetMessageClass(field.message_type), value)
    return value


def retention(message: common_pb2.Retention) -> Retention:
    """Returns a policy of retention."""
    return Retention(**{field.name: days for field, days in message.ListFields()})


def numbers_of(
    members: Iterable[_Member], enum: Any, prefix: str, unset: _Member | None = None
) -> dict[_Member, Any]:
    """Returns the proto's number of each member, which has its name after `prefix`.

    That of `unset` is 0.
    """
    return {one: 0 if one is unset else enum.Value(f"{prefix}{one.name}") for one in members}


def member_of(message: Message, name: str, default: _Member) -> _Member:
    """Returns the member that a field names; the default where the client did not set it."""
    enum: Any = message.DESCRIPTOR.fields_by_name[name].enum_type
    number = getattr(message, name)
    if not number:
        return default
    return type(default)[enum.values_by_number[number].name.removeprefix(_prefix(enum))]


def _prefix(enum: Any) -> str:
    return str(enum.values[0].name.removesuffix("UNSPECIFIED"))


def trust_number(level: Trust) -> Any:
    """Returns a level of trust as the proto has it."""
    return chunks_pb2.SourceTrust.Value(_TRUST + level.name)


def trust_of(number: int) -> Trust | None:
    """Returns the level that a field has; None where the client did not set it."""
    return Trust[chunks_pb2.SourceTrust.Name(number).removeprefix(_TRUST)] if number else None  # type: ignore[arg-type]


_TRUST = "SOURCE_TRUST_"


def timestamp(at: datetime) -> Timestamp:
    """Returns a time as the proto has it."""
    message = Timestamp()
    write_timestamp(at, message)
    return message


def write_timestamp(at: datetime, message: Timestamp) -> None:
    """Writes a time into a message; what FromDatetime does, in a fifth of its time."""
    since = at - _EPOCH
    message.seconds = since.days * _DAY_SECONDS + since.seconds
    message.nanos = since.microseconds * 1000


def moment(message: Timestamp) -> datetime:
    """Returns a time in whole microseconds, which the database keeps; the rest is cut off."""
    return _EPOCH + timedelta(seconds=message.seconds, microseconds=message.nanos // 1000)


def positions(first: int, last: int) -> common_pb2.PositionRange | None:
    """Returns positions, both included; None where there is none: the field stays unset."""
    return common_pb2.PositionRange(first=first, last=last) if 0 < first <= last else None


def characters(start: int, end: int) -> common_pb2.CharacterRange | None:
    """Returns characters up to before `end`; None where both are 0."""
    return common_pb2.CharacterRange(start=start, end=end) if start or end else None


def consistency(message: common_pb2.ReadConsistency) -> Consistency:
    """Returns how fresh a read must be."""
    return Consistency(at_least=message.at_least, fully_applied=message.fully_applied)


def read_point(revision: int, applied_position: int, token: str) -> common_pb2.ReadPoint:
    """Returns the point at which a read was made."""
    return common_pb2.ReadPoint(
        revision=revision, applied_position=applied_position, read_token=token
    )


def usage(lines: Iterable[UsageLine]) -> common_pb2.Usage:
    """Returns calls, summed."""
    total = common_pb2.Usage()
    for line in lines:
        total.calls += line.calls
        total.input_tokens += line.input_tokens
        total.predicted_cached_tokens += line.predicted_cached_tokens
        total.output_tokens += line.output_tokens
        if line.reported_cached_tokens is None:
            total.unreported_calls += line.calls
        else:
            total.reported_cached_tokens += line.reported_cached_tokens
        if line.cost_micro_usd is None:
            total.unpriced_calls += line.calls
        else:
            total.cost_micro_usd += line.cost_micro_usd
    return total
