"""Serves the tools over HTTP, beside the API: POST /mcp/SESSION, or /mcp/SESSION/THREAD.

GET is for the stream of changes (`service.mcp.streams`).
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Collection, Mapping, MutableMapping
from functools import partial
from typing import Any
from urllib.parse import unquote

import grpc
import mcp_types as types
import structlog
from grpc import aio
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.exceptions import MCPError
from starlette.responses import Response, StreamingResponse

import palimpsest
from service.domain.values.errors import PalimpsestError
from service.mcp.scope import Context, ToolScope
from service.mcp.server import new_server
from service.mcp.streams import ID_HEADER, ChangeStream, ChangeStreams
from service.mcp.subscriptions import Subscriber
from service.rpc.arrivals import Arrivals
from service.rpc.errors import abort_arguments
from service.rpc.http import wire
from service.rpc.in_process import Caller, InProcessChannel
from service.rpc.pipeline import Handler
from service.settings.config import Limits
from service.settings.mcp_tools import CALL_SECONDS
from storage.engine.tasks import cancel

_log = structlog.get_logger("palimpsest.mcp")

#: Bytes of a request: an argument of 100,000 characters, with six bytes for each as JSON.
MAX_BODY_BYTES = 1024 * 1024
#: Requests above this size are read one after the other, and so many bytes of them a second. The
#: server does nothing else while it reads one, for up to a tenth of a second.
_LARGE_BYTES, _LARGE_BYTES_PER_SECOND = 64 * 1024, 4 * 1024 * 1024
#: Characters of a path: two ids of 256 bytes, with three characters for each.
_MAX_PATH_CHARACTERS = 2048
#: Where a request has its scope.
_SCOPE = "palimpsest.scope"
#: Where it has what returns the stream of its client.
_STREAM = "palimpsest.stream"
#: The name of the check of credentials among the methods.
_CHECK = "check"
#: Headers of a request that its calls have.
_PASSED = ("authorization", "traceparent", "tracestate", "user-agent")

Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]


class _NoRequest(Exception):
    """A request that is no request of the protocol."""

    def __init__(self, status: int, message: str, **headers: str) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers


class ToolsApplication:
    """An ASGI application.

    It keeps nothing between requests, so that any server may serve each of them, but for what
    clients of versions with a handshake subscribe to.
    """

    def __init__(
        self,
        methods: Mapping[str, Handler],
        check: Handler,
        limits: Limits,
        names: Collection[str],
    ) -> None:
        """`methods`: with the interceptors about them. `check`: `pipeline.credentials_check`."""
        self._methods = {**methods, _CHECK: check}
        self._seconds = limits.message_seconds
        self._max_bytes = min(MAX_BODY_BYTES, limits.max_message_bytes)
        self._arrivals = Arrivals(
            places=limits.max_incomplete_messages,
            waiting=limits.max_calls,
            seconds=limits.message_seconds,
        )
        #: Bulkhead: requests that are large.
        self._large = asyncio.Lock()
        self._names = names
        self._streams = ChangeStreams(limits.max_watches)
        self._manager: StreamableHTTPSessionManager | None = None
        self._running: asyncio.Task[None] | None = None
        self._ready = asyncio.Event()

    async def start(self) -> None:
        """Starts what serves requests."""
        server = new_server(_scope_of, self._names, _subscriber_of)
        self._manager = StreamableHTTPSessionManager(
            server, json_response=True, stateless=True, max_request_body_size=self._max_bytes
        )
        self._running = asyncio.create_task(self._run(self._manager))
        await self._ready.wait()

    async def end_streams(self) -> None:
        """Ends the streams of changes, which would delay a server that stops."""
        await self._streams.close()

    async def stop(self) -> None:
        """Ends what serves requests."""
        if self._running is not None:
            await cancel([self._running])

    async def _run(self, manager: StreamableHTTPSessionManager) -> None:
        async with manager.run():
            self._ready.set()
            await asyncio.Event().wait()

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        """Serves a request; part of ASGI."""
        assert self._manager is not None, "it is started"
        try:
            session, thread = _named(scope)
            caller = _caller(scope)
            given, owner = _stream_id(scope), _owner(scope, caller)
            is_get = scope["method"] == "GET"
            if scope["method"] != "POST" and not (is_get and given):
                raise _NoRequest(405, "call by POST: changes need a session", allow="POST")
            channel = InProcessChannel(self._methods, caller)
            await channel.unary_unary(_CHECK)(None)
            if is_get:
                await self._stream(given, owner, scope, receive, send)
                return
            body = await self._body(caller.peer, receive)
            if len(body) > _LARGE_BYTES:
                async with self._large:
                    await asyncio.sleep(len(body) / _LARGE_BYTES_PER_SECOND)
        except _NoRequest as refused:
            await _refuse(scope, send, refused.status, str(refused), refused.headers)
            return
        except aio.AioRpcError as error:
            await _fail(scope, send, error.code(), error.details() or "", error.trailing_metadata())
            return
        except PalimpsestError as error:
            code, message, trailing = abort_arguments(error)
            await _fail(scope, send, code, message, trailing)
            return
        client = palimpsest.Client(channel=channel, timeout=CALL_SECONDS)
        within = ToolScope(session=client.session(session), thread=thread)
        replayed = _replayed(body, receive)
        bounded = self._bounded(send)
        if _begins(body):
            bounded = _with_id(bounded, self._streams.new_id(owner))
        of_client = partial(self._streams.find, given, owner)
        inner = {**scope, _SCOPE: within, _STREAM: of_client}
        await self._manager.handle_request(inner, replayed, bounded)

    async def _stream(
        self, given: str, owner: str, scope: Mapping[str, Any], receive: Receive, send: Send
    ) -> None:
        """Reports changes. Raises _NoRequest, Exhausted."""
        stream = self._streams.find(given, owner)
        if stream is None:
            raise _NoRequest(
                405, "call by POST: this server did not begin this session", allow="POST"
            )
        response = StreamingResponse(
            self._streams.read(given, stream),
            media_type="text/event-stream",
            headers={"cache-control": "no-store"},
        )
        await response(dict(scope), receive, self._bounded(send))

    async def _body(self, peer: str, receive: Receive) -> bytes:
        """Returns the body of a request. Raises _NoRequest, PalimpsestError."""
        content = bytearray()
        async with self._arrivals.place(peer):
            while True:
                part = await receive()
                if part["type"] == "http.disconnect":
                    raise _NoRequest(499, "the client is gone")
                content += part.get("body", b"")
                if len(content) > self._max_bytes:
                    raise _NoRequest(413, f"send at most {self._max_bytes} bytes")
                if not part.get("more_body", False):
                    return bytes(content)

    def _bounded(self, send: Send) -> Send:
        """Returns what also ends a response that its client does not accept."""

        async def bounded(part: Event) -> None:
            async with asyncio.timeout(self._seconds):
                await send(part)

        return bounded


def _scope_of(context: Context) -> ToolScope:
    assert context.request is not None, "it came over HTTP"
    found: ToolScope = context.request.scope[_SCOPE]
    return found


def _subscriber_of(context: Context) -> Subscriber:
    assert context.request is not None, "it came over HTTP"
    try:
        stream: ChangeStream | None = context.request.scope[_STREAM]()
    except PalimpsestError as error:
        raise MCPError(types.INTERNAL_ERROR, error.message) from error
    if stream is None:
        raise MCPError(
            types.INVALID_REQUEST,
            "this server did not begin the session that Mcp-Session-Id names: initialize again, and"
            " have a load balancer send all requests of a session to one server",
        )
    return Subscriber(kept=stream.kept, changed=stream.changed)


def _stream_id(scope: Mapping[str, Any]) -> str:
    name = ID_HEADER.encode()
    return next((value.decode("latin-1") for key, value in scope["headers"] if key == name), "")


def _owner(scope: Mapping[str, Any], caller: Caller) -> str:
    """Returns what an id is bound to: the address and the credentials of a client."""
    credentials = [value for name, value in caller.metadata if name == "authorization"]
    return repr((scope["raw_path"], credentials, sorted(caller.certificate.items())))


def _begins(body: bytes) -> bool:
    """Returns whether a request begins a connection of a version with a handshake."""
    if b'"initialize"' not in body:
        return False
    try:
        message = json.loads(body)
    except (ValueError, RecursionError):
        return False
    return isinstance(message, dict) and message.get("method") == "initialize"


def _with_id(send: Send, given: str) -> Send:
    """Returns what adds an id to a response."""

    async def sent(part: Event) -> None:
        if part["type"] == "http.response.start":
            part = {**part, "headers": [*part["headers"], (ID_HEADER.encode(), given.encode())]}
        await send(part)

    return sent


def _named(scope: Mapping[str, Any]) -> tuple[str, str]:
    """Returns the session and the thread that a path names. Raises _NoRequest."""
    raw = scope["raw_path"].decode("latin-1")
    parts = raw.strip("/").split("/")[1:]
    if len(raw) > _MAX_PATH_CHARACTERS or len(parts) not in (1, 2) or not all(parts):
        raise _NoRequest(404, "name a session: /mcp/SESSION, or /mcp/SESSION/THREAD")
    try:
        names = [unquote(one, errors="strict") for one in parts]
    except UnicodeDecodeError:
        raise _NoRequest(404, "the path is no UTF-8: encode the session's id so") from None
    return names[0], names[1] if len(names) == 2 else ""


def _caller(scope: Mapping[str, Any]) -> Caller:
    headers = wire.decoded_headers(scope["headers"])
    return Caller(
        peer=wire.peer_of(scope.get("client")),
        metadata=[one for one in headers if one[0] in _PASSED],
        certificate=scope.get("state", {}).get("certificate", {}),
    )


def _replayed(body: bytes, receive: Receive) -> Receive:
    """Returns what gives the body that was read, and then what comes."""
    parts: list[Event] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replayed() -> Event:
        return parts.pop() if parts else await receive()

    return replayed


async def _fail(
    scope: Mapping[str, Any], send: Send, code: grpc.StatusCode, message: str, trailing: Any
) -> None:
    failed = wire.failure(code, message, list(trailing or ()))
    await _refuse(scope, send, wire.STATUSES[code], message, dict(failed.headers), failed.content)


async def _refuse(
    scope: Mapping[str, Any],
    send: Send,
    status: int,
    message: str,
    headers: Mapping[str, str],
    content: Mapping[str, Any] | None = None,
) -> None:
    said = json.dumps(content or {"message": message})
    given = {**headers, "cache-control": "no-store"}
    response = Response(said, status_code=status, headers=given, media_type="application/json")
    await response(dict(scope), _nothing, send)


async def _nothing() -> Event:
    return {"type": "http.disconnect"}
