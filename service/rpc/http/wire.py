"""The formats of the Connect protocol: codecs, envelopes, compression, errors as JSON.

Specification: connectrpc.com/docs/protocol. What is here does no I/O.
"""

import base64
import binascii
import json
import math
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar
from urllib.parse import parse_qsl

import grpc
from google.protobuf import json_format
from google.protobuf.message import DecodeError, Message
from google.rpc import error_details_pb2, status_pb2

from service.domain.values.errors import InvalidInput
from service.domain.values.reasons import Reason

M = TypeVar("M", bound=Message)

#: HTTP's status for each code, as the protocol has them.
STATUSES: Mapping[grpc.StatusCode, int] = {
    grpc.StatusCode.CANCELLED: 499,
    grpc.StatusCode.UNKNOWN: 500,
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.DEADLINE_EXCEEDED: 504,
    grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.ALREADY_EXISTS: 409,
    grpc.StatusCode.PERMISSION_DENIED: 403,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 429,
    grpc.StatusCode.FAILED_PRECONDITION: 400,
    grpc.StatusCode.ABORTED: 409,
    grpc.StatusCode.OUT_OF_RANGE: 400,
    grpc.StatusCode.UNIMPLEMENTED: 501,
    grpc.StatusCode.INTERNAL: 500,
    grpc.StatusCode.UNAVAILABLE: 503,
    grpc.StatusCode.DATA_LOSS: 500,
    grpc.StatusCode.UNAUTHENTICATED: 401,
}

#: The flags of an envelope.
COMPRESSED = 0b01
END_OF_STREAM = 0b10
#: Bytes of an envelope before its message: flags and length.
PREFIX_BYTES = 5
#: Shorter responses are not compressed.
MIN_COMPRESSED_BYTES = 1024

#: The encoding of what is not compressed.
IDENTITY = "identity"
_GZIP = "gzip"
#: zlib's window bits that make it read and write gzip.
_GZIP_WINDOW = 16 + zlib.MAX_WBITS
_MAX_TIMEOUT_DIGITS = 10
_DETAILS = (
    *(error_details_pb2.ErrorInfo, error_details_pb2.RetryInfo, error_details_pb2.BadRequest),
    *(error_details_pb2.QuotaFailure, error_details_pb2.ResourceInfo),
)


class Unacceptable(Exception):
    """The protocol has a code of its own for what is wrong with a request, and no details."""

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class Codec(StrEnum):
    """How messages are written."""

    JSON = "json"
    PROTO = "proto"


class Framing(StrEnum):
    """How messages follow each other in a body."""

    #: The body is one message.
    SINGLE = "single"
    #: Each message is in an envelope, and the last one has the end of the stream.
    ENVELOPES = "envelopes"
    #: Responses are server-sent events with JSON; the request is one message.
    EVENTS = "events"


@dataclass(frozen=True, kw_only=True, slots=True)
class Format:
    """How one request and its responses are written."""

    codec: Codec
    framing: Framing

    @property
    def content_type(self) -> str:
        """The content type of the responses."""
        if self.framing is Framing.EVENTS:
            return "text/event-stream; charset=utf-8"
        prefix = "connect+" if self.framing is Framing.ENVELOPES else ""
        return f"application/{prefix}{self.codec}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """What a call ended with instead of a response."""

    code: grpc.StatusCode
    message: str
    #: The details of a google.rpc.Status.
    details: Sequence[Any] = ()

    @property
    def content(self) -> dict[str, Any]:
        """The error as the protocol has it in JSON."""
        found: dict[str, Any] = {"code": _name(self.code), "message": self.message}
        if self.details:
            found["details"] = [_detail(one) for one in self.details]
        return found

    @property
    def headers(self) -> Sequence[tuple[str, str]]:
        """The headers that HTTP's own clients and proxies understand."""
        if self.code is grpc.StatusCode.UNAUTHENTICATED:
            return [("www-authenticate", "Bearer")]
        for detail in self.details:
            retry = error_details_pb2.RetryInfo()
            if detail.Is(retry.DESCRIPTOR):
                detail.Unpack(retry)
                seconds = retry.retry_delay.ToMilliseconds() / 1000
                return [("retry-after", str(max(1, math.ceil(seconds))))]
        return ()


def failure(code: grpc.StatusCode, message: str, trailing: Sequence[tuple[str, Any]]) -> Failure:
    """Returns what `ServicerContext.abort` was given."""
    for key, value in trailing:
        if key == "grpc-status-details-bin":
            status = status_pb2.Status.FromString(value)
            return Failure(code=code, message=message, details=list(status.details))
    return Failure(code=code, message=message)


def _name(code: grpc.StatusCode) -> str:
    # The protocol spells it with one L.
    return "canceled" if code is grpc.StatusCode.CANCELLED else code.name.lower()


def _detail(packed: Any) -> dict[str, Any]:
    found: dict[str, Any] = {
        "type": packed.type_url.rpartition("/")[2],
        "value": base64.b64encode(packed.value).decode().rstrip("="),
    }
    for kind in _DETAILS:
        if packed.Is(kind.DESCRIPTOR):
            content = kind.FromString(packed.value)
            found["debug"] = json_format.MessageToDict(content)
    return found


def decoded_headers(raw: Iterable[tuple[bytes, bytes]]) -> Sequence[tuple[str, str]]:
    """Returns headers as text, with lower-case names."""
    return [(key.decode("latin-1").lower(), value.decode("latin-1")) for key, value in raw]


def encode(message: Message, codec: Codec) -> bytes:
    """Returns the bytes of a message."""
    if codec is Codec.PROTO:
        return message.SerializeToString()
    return json_format.MessageToJson(message, indent=None, ensure_ascii=False).encode()


def decode(content: bytes, codec: Codec, kind: type[M]) -> M:
    """Returns the message. Raises InvalidInput.

    Fields that the message does not have are an error in JSON: most are misspelled.
    """
    try:
        if codec is Codec.PROTO:
            return kind.FromString(content)
        message = kind()
        if content and content.lstrip()[:1] != b"{":
            raise ValueError('the message has to be an object, as in {"session": "alice"}')
        json_format.Parse(content or b"{}", message)
        if b"true" in content or b"false" in content:
            _refuse_truths_of_enums(json.loads(content), message.DESCRIPTOR)
    except DecodeError as error:
        # Its words are of the library, and change with it.
        raise _malformed(
            "the body is no protobuf of this method's request: encode it by the proto"
        ) from error
    except (ValueError, RecursionError, json_format.ParseError) as error:
        said = " ".join(str(error).split()) or "it is nested too deep"
        raise _malformed(f"the body is no JSON of {kind.DESCRIPTOR.full_name}: {said}") from error
    return message


def _refuse_truths_of_enums(value: Any, kind: Any) -> None:
    """Raises ValueError for an enum that is true or false, which the library reads as 1 or 0.

    `kind` is the descriptor of the message.
    """
    if not isinstance(value, dict) or kind.full_name.startswith("google."):
        return
    for name, given in value.items():
        field = kind.fields_by_camelcase_name.get(name) or kind.fields_by_name.get(name)
        if field is None:
            continue
        for one in given if isinstance(given, list) else (given,):
            if field.enum_type is not None and isinstance(one, bool):
                raise ValueError(f"{name} has to be the name of a value, not true or false")
            if field.message_type is not None:
                _refuse_truths_of_enums(one, field.message_type)


def inflate(content: bytes, encoding: str, limit: int) -> bytes:
    """Returns the content of a body or of an envelope. Raises InvalidInput, Unacceptable."""
    if encoding in ("", IDENTITY):
        return content
    if encoding != _GZIP:
        raise Unacceptable(
            grpc.StatusCode.UNIMPLEMENTED,
            f"the encoding {encoding[:40]!r} is unknown: use gzip or identity",
        )
    inflater = zlib.decompressobj(_GZIP_WINDOW)
    try:
        found = inflater.decompress(content, limit + 1)
    except zlib.error as error:
        raise _malformed("the body is not gzip, as its encoding says: compress it anew") from error
    if len(found) > limit:
        raise too_large(limit)
    if not inflater.eof:
        raise _malformed("the compressed body is cut: send all of it")
    return found


def deflate(content: bytes) -> bytes:
    """Returns the content as gzip."""
    deflater = zlib.compressobj(wbits=_GZIP_WINDOW)
    return deflater.compress(content) + deflater.flush()


def accepts_gzip(header: str) -> bool:
    """Returns whether an Accept-Encoding has gzip, and does not forbid it."""
    for part in header.split(","):
        name, _, parameters = part.strip().lower().partition(";")
        if name.strip() == _GZIP:
            return parameters.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False


def enveloped(content: bytes, flags: int = 0) -> bytes:
    """Returns an envelope."""
    return struct.pack(">BI", flags, len(content)) + content


def opened(prefix: bytes) -> tuple[int, int]:
    """Returns the flags of an envelope and the bytes of its message."""
    flags, size = struct.unpack(">BI", prefix)
    return flags, size


def end_of_stream(failed: Failure | None, metadata: Iterable[tuple[str, str]] = ()) -> bytes:
    """Returns the last envelope of a stream."""
    content: dict[str, Any] = {} if failed is None else {"error": failed.content}
    for name, value in metadata:
        content.setdefault("metadata", {}).setdefault(name, []).append(value)
    return enveloped(dumped(content), END_OF_STREAM)


def trailers(metadata: Iterable[tuple[str, str]]) -> Sequence[tuple[str, str]]:
    """Returns the headers that have the trailing metadata of a unary call."""
    return [(f"trailer-{name}", value) for name, value in metadata]


def dumped(content: Mapping[str, Any]) -> bytes:
    """Returns JSON of what is no message."""
    return json.dumps(content, ensure_ascii=False).encode()


def event(content: bytes, name: str = "", id: str = "") -> bytes:
    """Returns a server-sent event; JSON has no line breaks, and neither has an id."""
    first = f"event: {name}\n".encode() if name else b""
    first += f"id: {id}\n".encode() if id else b""
    return first + b"data: " + content + b"\n\n"


def timeout(header: str) -> float | None:
    """Returns the seconds of a Connect-Timeout-Ms. Raises InvalidInput."""
    if not header:
        return None
    if len(header) > _MAX_TIMEOUT_DIGITS or not (header.isascii() and header.isdigit()):
        raise _malformed(
            f"connect-timeout-ms: must be milliseconds of up to {_MAX_TIMEOUT_DIGITS} digits"
        )
    return int(header) / 1000


def query_codec(text: bytes) -> Codec:
    """Returns the codec that the query of a GET names; JSON for none that there is."""
    named = _parameters(text).get("encoding")
    return Codec.PROTO if named == Codec.PROTO else Codec.JSON


def query_message(text: bytes, limit: int) -> bytes:
    """Returns the message of a GET: `message`, with `base64=1` and `compression`.

    Raises InvalidInput, Unacceptable.
    """
    found = _parameters(text)
    if found.get("connect", "v1") != "v1":
        raise _malformed("connect: must be v1")
    if found.get("encoding", Codec.JSON) not in list(Codec):
        raise _malformed("encoding: must be json or proto")
    content = found.get("message", "").encode()
    if found.get("base64") == "1":
        try:
            content = base64.urlsafe_b64decode(content + b"=" * (-len(content) % 4))
        except binascii.Error as error:
            raise _malformed("message: must be base64 for URLs (RFC 4648)") from error
    return inflate(content, found.get("compression", ""), limit)


def _parameters(text: bytes) -> dict[str, str]:
    return dict(parse_qsl(text.decode("latin-1"), keep_blank_values=True))


def too_large(limit: int) -> Unacceptable:
    """Returns the error of a message that is too large: gRPC has the same code for it."""
    return Unacceptable(
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        f"the message has more than {limit} bytes (max_message_bytes): send several",
    )


def _malformed(what: str) -> InvalidInput:
    return InvalidInput(Reason.REQUEST_MALFORMED, what)


def peer_of(client: tuple[str, int] | None) -> str:
    """Returns the address of ASGI's client, as gRPC writes it."""
    if client is None:
        return "unix:"
    host, port = client
    return f"ipv6:[{host}]:{port}" if ":" in host else f"ipv4:{host}:{port}"
