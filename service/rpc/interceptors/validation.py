"""Checks requests against the rules that stand beside their fields in the proto."""

from collections.abc import AsyncIterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import asynccontextmanager
from typing import Any

import protovalidate
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from service.domain.values.errors import InvalidInput
from service.domain.values.reasons import Reason
from service.rpc.interceptors.base import Around, Context

#: Texts of v1alpha1 that are stored as they are, which PostgreSQL cannot do with a NUL character.
#: Those of v1 have a rule (no_nul in rules.proto).
_STORED = {
    *("task", "question", "model", "navigation_model", "comment", "query", "options", "pinned"),
    *("expected", "final_task"),
}
#: What to say in place of the patterns of the proto: not everybody reads those. Of v1 it is the
#: language of a session alone; its other rules have messages.
PATTERNS = {
    r"^[^\x00-\x1f\x7f]*$": "must have no control characters",
    "^([a-z][a-z0-9_]*)?$": "must have only a-z, 0-9 and _, and begin with a letter",
    "^[0-9]{1,3}[.][1-9][0-9]{0,17}$": "must be a stored node as level.number, such as 0.17",
}


def validate(message: Message) -> None:
    """Raises InvalidInput for the first field that breaks a rule."""
    _refuse_unfit(message)
    try:
        protovalidate.validate(message, fail_fast=True)
    except protovalidate.ValidationError as error:
        violation = error.violations[0]
        field = _field(violation.proto.field)
        said = violation.proto.message
        if violation.proto.rule_id == "string.pattern":
            said = PATTERNS[violation.rule_value]
        raise InvalidInput(
            Reason.FIELD_INVALID, f"{field}: {said}" if field else said, field=field
        ) from error


def _refuse_unfit(message: Message, within: str = "") -> None:
    """Refuses texts with a NUL character, and times that no rule can be held against."""
    for field, value in message.ListFields():
        if isinstance(value, Duration | Timestamp):
            _check_time(value, within + field.name)
        elif isinstance(value, Message):
            _refuse_unfit(value, f"{within}{field.name}.")
        elif field.message_type is not None and not field.message_type.GetOptions().map_entry:
            for number, one in enumerate(value):
                _refuse_unfit(one, f"{within}{field.name}[{number}].")
        elif field.name in _stored(message) and any("\0" in text for text in _texts(value)):
            name = within + field.name
            raise InvalidInput(Reason.FIELD_INVALID, f"{name} holds a NUL character", field=name)


def _stored(message: Message) -> AbstractSet[str]:
    return _STORED if message.DESCRIPTOR.file.package == "palimpsest.v1alpha1" else frozenset()


def _check_time(value: Duration | Timestamp, name: str) -> None:
    try:
        value.ToJsonString()
    except ValueError as error:
        is_time = isinstance(value, Timestamp)
        kind = "time from the year 1 to the year 9999" if is_time else "duration up to 10,000 years"
        raise InvalidInput(Reason.FIELD_INVALID, f"{name}: must be a {kind}", field=name) from error


def _texts(value: Any) -> Sequence[str]:
    """The texts of a field that may be repeated."""
    return [value] if isinstance(value, str) else [one for one in value if isinstance(one, str)]


def _field(path: Any) -> str:
    parts: list[str] = []
    for element in path.elements if path is not None else ():
        subscript = element.subscript
        name = element.field_name
        if subscript is not None:
            name += f"[{subscript.value!r}]"
        parts.append(name)
    return ".".join(parts)


class Validation(Around):
    """Checks the request of each call whose client does not stream."""

    @asynccontextmanager
    async def around(self, method: str, request: Any, context: Context) -> AsyncIterator[None]:
        """Checks the request before the handler sees it."""
        # The health and reflection services' own messages carry no rules of ours.
        if request is not None and method.startswith("/palimpsest."):
            validate(request)
        yield
