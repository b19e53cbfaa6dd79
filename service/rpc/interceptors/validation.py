"""Checks requests against the rules that stand beside their fields in the proto."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import protovalidate
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from service.domain.values.errors import InvalidInput
from service.domain.values.reasons import Reason
from service.rpc.interceptors.base import Around, Context

#: What to say in place of a pattern of the proto, which not everyone can read. Rules that several
#: fields share have messages of their own (rules.proto).
PATTERNS = {
    "^([a-z][a-z0-9_]*)?$": "must have only a-z, 0-9 and _, and begin with a letter",
    "^[0-9a-f]{32}$": "must have 32 of 0-9 and a-f, as ListKeptOutTexts has it",
}


def validate(message: Message) -> None:
    """Raises InvalidInput for the first field that breaks a rule."""
    _check_times(message)
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


def _check_times(message: Message, within: str = "") -> None:
    """Refuses times that no rule can check."""
    for field, value in message.ListFields():
        if isinstance(value, Duration | Timestamp):
            _check_time(value, within + field.name)
        elif isinstance(value, Message):
            _check_times(value, f"{within}{field.name}.")
        elif field.message_type is not None and not field.message_type.GetOptions().map_entry:
            for number, one in enumerate(value):
                _check_times(one, f"{within}{field.name}[{number}].")


def _check_time(value: Duration | Timestamp, name: str) -> None:
    try:
        value.ToJsonString()
    except ValueError as error:
        is_time = isinstance(value, Timestamp)
        kind = "time from the year 1 to the year 9999" if is_time else "duration up to 10,000 years"
        raise InvalidInput(Reason.FIELD_INVALID, f"{name}: must be a {kind}", field=name) from error


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
