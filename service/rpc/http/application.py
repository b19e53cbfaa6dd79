"""The ASGI application: finds the method of a request, and runs its handler."""

import asyncio
import ipaddress
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from email.utils import formatdate
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import grpc
import structlog
from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import MethodOptions
from google.protobuf.message import Message
from starlette.middleware.cors import CORSMiddleware

from service.domain.values.errors import InvalidInput
from service.rpc.http import wire
from service.rpc.http.call import Aborted, ClientGone, HttpCall, Receive, Send
from service.rpc.http.wire import Codec, Format, Framing
from service.rpc.pipeline import Handler
from service.settings.config import Limits
from storage.engine.tasks import cancel

_log = structlog.get_logger("palimpsest.rpc")

#: Streams in both directions whose clients wait for responses while they send: gRPC only.
GRPC_ONLY = frozenset({"/palimpsest.v1.SessionService/AppendChunks"})
OPENAPI_PATH = "/openapi.json"
TOOLS_PATH = "/mcp"
_OPENAPI_FILE = Path(__file__).with_name("openapi.json")

#: For how long a browser remembers the answer.
_CORS_SECONDS = 7200

_JSON = [("content-type", "application/json"), ("x-content-type-options", "nosniff")]
_SINGLE = {f"application/{codec}": codec for codec in Codec}
_ENVELOPES = {f"application/connect+{codec}": codec for codec in Codec}


@dataclass(frozen=True, kw_only=True, slots=True)
class _Method:
    """What a path serves."""

    handler: Any
    request: type[Message]
    #: Whether GET may call it: it changes nothing.
    is_safe: bool
    #: Whether it has several requests.
    streams_in: bool

    @property
    def is_stream(self) -> bool:
        """Whether it has several responses."""
        return bool(self.handler.response_streaming)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Refusal(Exception):
    """A request that calls no method."""

    status: int
    message: str
    headers: Sequence[tuple[str, str]] = ()


def for_browsers(application: "Application", origins: Collection[str]) -> Any:
    """Returns an ASGI application that also replies to browsers that ask first (CORS)."""
    return CORSMiddleware(
        application,
        allow_origins=list(origins),
        allow_methods=["GET", "POST"],
        allow_headers=[
            *("authorization", "content-type", "connect-protocol-version", "connect-timeout-ms"),
            *("content-encoding", "last-event-id", "traceparent", "tracestate"),
            *("mcp-protocol-version", "mcp-method", "mcp-name"),
        ],
        expose_headers=["retry-after", "www-authenticate"],
        max_age=_CORS_SECONDS,
    )


class Application:
    """Serves the methods over HTTP, by the same interceptors and handlers as gRPC does.

    A web page that the user of this machine visits could call it, as could one whose name resolves
    to this machine. So it refuses requests from origins that are not listed, and those for other
    hosts where it serves this machine alone, without authentication.
    """

    def __init__(
        self,
        methods: Mapping[str, Handler],
        limits: Limits,
        *,
        origins: Collection[str] = (),
        local_only: bool = False,
        tools: Any = None,
    ) -> None:
        """`methods`: with the interceptors about them (`pipeline.wrapped`).

        `origins`: those of web pages that may call it; "*": all. `local_only`: whether requests
        have to name this machine as their host. `tools`: an ASGI application that serves
        TOOLS_PATH and what is below it.
        """
        self._limits = limits
        self._origins = frozenset(origins)
        self._local_only = local_only
        self._methods: dict[str, _Method] = {}
        self._tools = tools
        for path, handler in methods.items():
            described = descriptor_pool.Default().FindMethodByName(path[1:].replace("/", "."))
            safe = described.GetOptions().idempotency_level == MethodOptions.NO_SIDE_EFFECTS
            self._methods[path] = _Method(
                handler=handler,
                request=message_factory.GetMessageClass(described.input_type),
                is_safe=safe,
                streams_in=described.client_streaming,
            )

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        """Serves a request; part of ASGI."""
        assert scope["type"] == "http", "the server offers nothing else"
        headers = wire.decoded_headers(scope["headers"])
        given = dict(headers)
        try:
            _check_framing(given)
            self._check_origin(given, scope)
            if scope["path"] == OPENAPI_PATH and scope["method"] in ("GET", "HEAD"):
                await _describe(send, given)
                return
            if self._tools is not None and f"{scope['path']}/".startswith(f"{TOOLS_PATH}/"):
                await self._tools(scope, receive, send)
                return
            method = self._method(scope)
            format = _format(method, scope, given)
        except _Refusal as refused:
            content = wire.dumped({"code": _code(refused.status), "message": refused.message})
            # Caches keep some of these statuses where nothing forbids it.
            said = [*_JSON, ("cache-control", "no-store"), *refused.headers]
            await _respond(send, refused.status, content, said)
            return
        call = HttpCall(
            scope,
            headers,
            receive,
            send,
            request=method.request,
            format=format,
            max_bytes=self._limits.max_message_bytes,
            send_seconds=self._limits.message_seconds,
            streams_in=method.streams_in,
        )
        try:
            await _run(method, call)
        except ClientGone:
            # Nothing can be sent, and nothing was lost: what was stored is stored.
            return

    def _method(self, scope: Mapping[str, Any]) -> _Method:
        path = scope["path"]
        found = self._methods.get(path)
        if found is None:
            raise _Refusal(
                status=404,
                message="there is no such method: POST to /palimpsest.v1.SessionService/Recall, for"
                f" example; {OPENAPI_PATH} lists all of them",
            )
        if path in GRPC_ONLY:
            raise _Refusal(
                status=501,
                message="this stream is for gRPC: append by SessionService/Append with request_id",
            )
        allowed = ("GET", "POST") if found.is_safe else ("POST",)
        if scope["method"] not in allowed:
            raise _Refusal(
                status=405,
                message=f"call this method by {' or '.join(allowed)}",
                headers=[("allow", ", ".join(allowed))],
            )
        return found

    def _check_origin(self, given: Mapping[str, str], scope: Mapping[str, Any]) -> None:
        host = given.get("host", "")
        origin = given.get("origin")
        if self._local_only and not _is_here(host):
            raise _Refusal(
                status=403,
                message="without authentication this server serves requests for its own address"
                " only: call it by that, or set PALIMPSEST_AUTHENTICATION=required",
            )
        if origin is None or "*" in self._origins or origin in self._origins:
            return
        if origin != f"{scope.get('scheme', 'http')}://{host}":
            raise _Refusal(
                status=403,
                message="web pages of this origin may not call: add it to"
                " PALIMPSEST_HTTP_ORIGINS to allow it",
            )


async def _run(method: _Method, call: HttpCall) -> None:
    """Runs a handler until it ends, its deadline is up or its client is gone. Raises ClientGone."""
    try:
        call.expect(wire.timeout(call.header("connect-timeout-ms")))
    except InvalidInput as error:
        call.end_with(grpc.StatusCode.INVALID_ARGUMENT, error.message)
        await call.finish(None)
        return
    handler = method.handler
    serve = handler.stream_stream if method.is_stream else handler.stream_unary
    work = asyncio.create_task(serve(None, call))
    beside = [asyncio.create_task(call.gone()), asyncio.create_task(call.alive())]
    try:
        await asyncio.wait(
            (work, *beside), timeout=call.time_remaining(), return_when=asyncio.FIRST_COMPLETED
        )
        if not work.done():
            is_gone = call.done()
            code = grpc.StatusCode.CANCELLED if is_gone else grpc.StatusCode.DEADLINE_EXCEEDED
            call.end_with(code, "the client is gone" if is_gone else "the deadline is exceeded")
    finally:
        await cancel([work, *beside])
    await call.finish(_outcome(work, call))


def _outcome(work: "asyncio.Task[Any]", call: HttpCall) -> Any:
    """Returns the response of a handler that has ended; None if `call.failed` is set.

    Raises ClientGone.
    """
    if work.cancelled():
        if call.failed is None:
            call.end_with(grpc.StatusCode.CANCELLED, "the server stops")
        return None
    error = work.exception()
    if error is None:
        return work.result()
    if isinstance(error, ClientGone) or call.done():
        raise ClientGone
    if not isinstance(error, Aborted):
        # `Errors` gives all others a number, and the client that.
        _log.error("call failed outside of its interceptors", exc_info=error)
        call.end_with(grpc.StatusCode.INTERNAL, "internal error: report it to the operator")
    return None


def _format(method: _Method, scope: Mapping[str, Any], headers: Mapping[str, str]) -> Format:
    """Returns how a request is written, and how its responses are to be. Raises _Refusal."""
    is_get = scope["method"] == "GET"
    given = headers.get("content-type", "").partition(";")[0].strip().lower()
    if method.is_stream:
        if is_get or given == "application/json":
            return Format(codec=Codec.JSON, framing=Framing.EVENTS)
        if given in _ENVELOPES:
            return Format(codec=_ENVELOPES[given], framing=Framing.ENVELOPES)
        raise _Refusal(
            status=415,
            message="this method streams its responses: send application/json for events, or"
            " application/connect+json or +proto by the Connect protocol",
            headers=[("accept-post", ", ".join(("application/json", *_ENVELOPES)))],
        )
    if is_get:
        return Format(codec=wire.query_codec(scope["query_string"]), framing=Framing.SINGLE)
    if given not in _SINGLE:
        raise _Refusal(
            status=415,
            message="send the header `content-type: application/json`, or application/proto",
            headers=[("accept-post", ", ".join(_SINGLE))],
        )
    return Format(codec=_SINGLE[given], framing=Framing.SINGLE)


def _is_here(host: str) -> bool:
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return False
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _code(status: int) -> str:
    """Returns the protocol's code for a status that no method has caused."""
    return {400: "invalid_argument", 403: "permission_denied", 405: "unknown", 415: "unknown"}.get(
        status, "unimplemented"
    )


def _check_framing(given: Mapping[str, str]) -> None:
    """Raises _Refusal for a body with two lengths: a proxy may read the other (RFC 9112, 6.1)."""
    if "transfer-encoding" in given and "content-length" in given:
        raise _Refusal(
            status=400,
            message="send either content-length or transfer-encoding, not both",
            headers=[("connection", "close")],
        )


async def _describe(send: Send, given: Mapping[str, str]) -> None:
    """Sends the description of the API, which is the same for all."""
    headers = [*_JSON, ("vary", "accept-encoding"), ("cache-control", "public, max-age=300")]
    content = _openapi()
    if wire.accepts_gzip(given.get("accept-encoding", "")):
        content, headers = _openapi_as_gzip(), [*headers, ("content-encoding", "gzip")]
    await _respond(send, 200, content, headers)


@cache
def _openapi() -> bytes:
    return _OPENAPI_FILE.read_bytes()


@cache
def _openapi_as_gzip() -> bytes:
    return wire.deflate(_openapi())


async def _respond(
    send: Send, status: int, content: bytes, headers: Sequence[tuple[str, str]]
) -> None:
    encoded = [(key.encode(), value.encode()) for key, value in headers]
    encoded += [
        (b"content-length", str(len(content)).encode()),
        (b"date", formatdate(usegmt=True).encode()),
    ]
    await send({"type": "http.response.start", "status": status, "headers": encoded})
    await send({"type": "http.response.body", "body": content, "more_body": False})
