"""Exchanges: a received request, the response to it, and what is wrong with a request."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """A request, without the provider's part of the path."""

    path: str
    query: Mapping[str, str]
    #: By names in lower case.
    headers: Mapping[str, str]
    body: Json

    @property
    def bearer(self) -> str:
        """The key in the header that most providers take."""
        return self.headers.get("authorization", "").removeprefix("Bearer ")


@dataclass(frozen=True, kw_only=True, slots=True)
class Response:
    """A response to a request."""

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    #: Of a stream; None: it comes whole.
    parts: tuple[bytes, ...] | None = None
    #: The connection ends before the body does.
    is_cut: bool = False


class Invalid(Exception):
    """A request that the provider refuses."""

    def __init__(
        self,
        rule: str,
        message: str,
        *,
        status: int = 400,
        param: str | None = None,
        code: str = "",
    ) -> None:
        """`rule` is our short name of what was broken; the rest is the provider's."""
        super().__init__(message)
        self.rule = rule
        self.message = message
        self.status = status
        self.param = param
        self.code = code


def json_response(value: object, status: int = 200, **headers: str) -> Response:
    """Returns a body of JSON; headers are named with `_` for `-`."""
    named = {name.replace("_", "-"): text for name, text in headers.items()}
    return Response(status=status, body=json.dumps(value).encode(), headers=named)


def stream(events: Iterator[bytes], media_type: str = "text/event-stream") -> Response:
    """Returns a response in parts."""
    return Response(parts=tuple(events), headers={"Content-Type": media_type})


def data(value: object, end: str = "\n\n") -> bytes:
    """Returns an event of server-sent events without a name."""
    return f"data: {json.dumps(value)}{end}".encode()


def text_of(content: object) -> str:
    """Returns the text of a message's content: in one piece, or in blocks."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    return "".join(str(block.get("text", "")) for block in content if isinstance(block, dict))


def unknown_fields(value: Mapping[str, object], known: frozenset[str]) -> list[str]:
    """Returns the names that are none of `known`, in the order of the request."""
    return [name for name in value if name not in known]


def names(text: str) -> frozenset[str]:
    """Names with blanks between them."""
    return frozenset(text.split())
