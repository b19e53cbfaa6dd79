"""Checks requests against the rules that stand beside their fields in the proto."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import protovalidate
from google.protobuf.message import Message

from service.domain.errors import InvalidInput
from service.domain.reasons import Reason
from service.rpc.interceptors.base import Around, Context


def validate(message: Message) -> None:
    """Raises InvalidInput for the first field that breaks a rule."""
    try:
        protovalidate.validate(message, fail_fast=True)
    except protovalidate.ValidationError as error:
        violation = error.violations[0].proto
        field = _field(violation.field)
        raise InvalidInput(
            Reason.FIELD_INVALID,
            f"{field}: {violation.message}" if field else violation.message,
            field=field,
        ) from error


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
