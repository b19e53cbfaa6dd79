"""One call over HTTP, with the interface that gRPC gives to handlers and interceptors."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping, Sequence
from email.utils import formatdate
from typing import Any

import grpc
from google.protobuf.message import Message
from grpc import aio

from service.domain.values.errors import InvalidInput
from service.domain.values.reasons import Reason
from service.llm.offloading import beside
from service.rpc.http import wire
from service.rpc.http.wire import COMPRESSED, PREFIX_BYTES, Codec, Failure, Format, Framing

Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]

#: Longer messages in JSON are read and written in a thread: Python needs a second for 4 MB.
_BESIDE_BYTES = 64 * 1024
#: Event streams say so often that they are alive; proxies end what is silent for a minute.
KEEP_ALIVE_SECONDS = 15.0
_KEEP_ALIVE = b": keep-alive\n\n"
#: The field of responses after which a stream goes on, and of the request that does so.
_RESUME_FIELD = "resume_token"


class Aborted(aio.AbortError):
    """Ends a call whose failure is set, as gRPC's own exception does."""


class ClientGone(Exception):
    """The client has closed its connection, or takes nothing from it."""


class HttpCall:
    """One request and its responses.

    It has what this service uses of `grpc.aio.ServicerContext`. A body is read when an interceptor
    asks for a message, so not before credentials are verified.
    """

    #: OpenTelemetry's name of the protocol.
    rpc_system = "connectrpc"

    def __init__(
        self,
        scope: Mapping[str, Any],
        headers: Sequence[tuple[str, str]],
        receive: Receive,
        send: Send,
        *,
        request: type[Message],
        format: Format,
        max_bytes: int,
        send_seconds: float,
        streams_in: bool = False,
    ) -> None:
        """`headers`: with lower-case names. `request`: the class of its messages.

        `max_bytes`: of one of them. `send_seconds`: how long a client may take to accept a part of
        the response.
        """
        self._scope = scope
        self._receive = receive
        self._send = send
        self._request = request
        self._format = format
        self._max_bytes = max_bytes
        self._send_seconds = send_seconds
        self._streams_in = streams_in
        self._headers = headers
        self._buffer = bytearray()
        self._is_read = False
        self._read_all = asyncio.Event()
        self._is_gone = False
        self._is_ended = False
        self._has_begun = False
        self._sending = asyncio.Lock()
        self._code: grpc.StatusCode | None = None
        #: What the call ends with.
        self.failed: Failure | None = None
        self._until: float | None = None
        self._leading: Sequence[tuple[str, str]] = ()
        self._trailing: Sequence[tuple[str, str]] = ()

    # What the protocol has.

    def header(self, name: str) -> str:
        """Returns a header of the request; empty without it."""
        return next((value for key, value in self._headers if key == name), "")

    def expect(self, seconds: float | None) -> None:
        """Sets the client's deadline."""
        if seconds is not None:
            self._until = asyncio.get_running_loop().time() + seconds

    async def gone(self) -> None:
        """Returns once the client has closed its connection; needs the request to be read."""
        await self._read_all.wait()
        while not self._is_gone:
            if (await self._receive())["type"] == "http.disconnect":
                self._is_gone = True

    async def alive(self) -> None:
        """Writes comments into an event stream until cancelled."""
        while True:
            await asyncio.sleep(KEEP_ALIVE_SECONDS)
            if self._has_begun and self._format.framing is Framing.EVENTS:
                async with self._sending:
                    if not self._is_ended:
                        await self._body(_KEEP_ALIVE, more=True)

    def end_with(self, code: grpc.StatusCode, message: str) -> None:
        """Sets what the call ends with, before what serves it is cancelled."""
        self._code = code
        self.failed = Failure(code=code, message=message)

    async def finish(self, response: Any) -> None:
        """Sends the response, or what the call ended with. Raises ClientGone."""
        async with self._sending:
            self._is_ended = True
            if self._format.framing is Framing.SINGLE:
                await self._whole(response)
            elif self._format.framing is Framing.ENVELOPES:
                if not self._has_begun:
                    await self._begin(200, self._stream_headers())
                end = wire.end_of_stream(self.failed, self._trailing)
                await self._body(end, more=False)
            elif not self._has_begun and self.failed is not None:
                await self._refuse()
            else:
                if not self._has_begun:
                    await self._begin(200, self._stream_headers())
                name, content = "end", {}
                if self.failed is not None:
                    name, content = "error", self.failed.content
                await self._body(wire.event(wire.dumped(content), name), more=False)

    async def _whole(self, response: Any) -> None:
        if self.failed is not None:
            await self._refuse()
            return
        content = await self._encoded(response)
        headers = [
            ("content-type", self._format.content_type),
            ("vary", "accept-encoding"),
            *wire.trailers(self._trailing),
        ]
        if len(content) >= wire.MIN_COMPRESSED_BYTES and wire.accepts_gzip(
            self.header("accept-encoding")
        ):
            content = await beside(wire.deflate, content)
            headers.append(("content-encoding", "gzip"))
        await self._begin(200, [*headers, ("content-length", str(len(content)))])
        await self._body(content, more=False)

    async def _refuse(self) -> None:
        assert self.failed is not None, "it is set"
        content = wire.dumped(self.failed.content)
        headers = [
            ("content-type", "application/json"),
            ("content-length", str(len(content))),
            *self.failed.headers,
            *wire.trailers(self._trailing),
        ]
        await self._begin(wire.STATUSES[self.failed.code], headers)
        await self._body(content, more=False)

    def _stream_headers(self) -> Sequence[tuple[str, str]]:
        headers = [("content-type", self._format.content_type)]
        if self._format.framing is Framing.EVENTS:
            # nginx would collect events before it passes them on.
            headers.append(("x-accel-buffering", "no"))
        return headers

    async def _begin(self, status: int, headers: Iterable[tuple[str, str]]) -> None:
        self._has_begun = True
        encoded = [
            (key.encode("latin-1"), value.encode("latin-1"))
            for key, value in (*headers, *self._leading)
        ]
        encoded += [
            (b"cache-control", b"no-store"),
            (b"x-content-type-options", b"nosniff"),
            (b"date", formatdate(usegmt=True).encode()),
        ]
        await self._sent({"type": "http.response.start", "status": status, "headers": encoded})

    async def _body(self, content: bytes, *, more: bool) -> None:
        await self._sent({"type": "http.response.body", "body": content, "more_body": more})

    async def _sent(self, part: Event) -> None:
        if self._is_gone:
            raise ClientGone
        try:
            async with asyncio.timeout(self._send_seconds):
                await self._send(part)
        except (TimeoutError, OSError) as error:
            self._is_gone = True
            raise ClientGone from error

    async def _encoded(self, message: Message) -> bytes:
        codec = self._format.codec
        if codec is Codec.JSON and message.ByteSize() > _BESIDE_BYTES:
            return await beside(wire.encode, message, codec)
        return wire.encode(message, codec)

    async def _decoded(self, content: bytes, codec: Codec) -> Message:
        if codec is Codec.JSON and len(content) > _BESIDE_BYTES:
            return await beside(wire.decode, content, codec, self._request)
        return wire.decode(content, codec, self._request)

    # What gRPC's context has.

    async def read(self) -> Any:
        """Returns the next message, or `aio.EOF`. Raises InvalidInput, Aborted, ClientGone."""
        try:
            return self._resumed(await self._next())
        except wire.Unacceptable as error:
            await self.abort(error.code, str(error))

    def _resumed(self, message: Any) -> Any:
        """Lets a request go on after the last event that a browser has got (`EventSource`)."""
        last = self.header("last-event-id")
        is_request = self._format.framing is Framing.EVENTS and isinstance(message, Message)
        if last and is_request and _RESUME_FIELD in message.DESCRIPTOR.fields_by_name:
            setattr(message, _RESUME_FIELD, last)
        return message

    async def _next(self) -> Any:
        if not self._streams_in and self._is_read:
            return aio.EOF
        self._is_read = True
        if self._scope["method"] == "GET":
            self._read_all.set()
            content = wire.query_message(self._scope["query_string"], self._max_bytes)
            return await self._decoded(content, self._format.codec)
        if self._format.framing is Framing.ENVELOPES:
            return await self._enveloped()
        while not self._read_all.is_set():
            await self._more(self._max_bytes)
        content, self._buffer = bytes(self._buffer), bytearray()
        encoding = self.header("content-encoding")
        return await self._decoded(
            wire.inflate(content, encoding, self._max_bytes), self._format.codec
        )

    async def _enveloped(self) -> Any:
        if not await self._has(PREFIX_BYTES):
            if self._streams_in:
                return aio.EOF
            raise _not_one("the body has no envelope: send the request in one")
        flags, size = wire.opened(bytes(self._buffer[:PREFIX_BYTES]))
        if size > self._max_bytes:
            raise wire.too_large(self._max_bytes)
        if flags & ~COMPRESSED:
            raise InvalidInput(
                Reason.REQUEST_MALFORMED, f"an envelope has the unknown flags {flags}"
            )
        if not await self._has(PREFIX_BYTES + size):
            raise InvalidInput(
                Reason.REQUEST_MALFORMED, "the body ends within an envelope: send all of it"
            )
        content = bytes(self._buffer[PREFIX_BYTES : PREFIX_BYTES + size])
        del self._buffer[: PREFIX_BYTES + size]
        encoding = ""
        if flags & COMPRESSED:
            encoding = self.header("connect-content-encoding")
            if encoding in ("", wire.IDENTITY):
                # The protocol's code for it.
                raise wire.Unacceptable(
                    grpc.StatusCode.INTERNAL,
                    "an envelope is compressed: say by `Connect-Content-Encoding: gzip` how",
                )
        if not self._streams_in:
            # All of it, to notice later that the client is gone.
            while not self._read_all.is_set():
                await self._more(self._max_bytes)
            if self._buffer:
                raise _not_one("this method has one message: call once for each")
        return await self._decoded(
            wire.inflate(content, encoding, self._max_bytes), self._format.codec
        )

    async def _has(self, size: int) -> bool:
        """Reads until there are so many bytes; returns whether there are."""
        while len(self._buffer) < size and not self._read_all.is_set():
            await self._more(size + self._max_bytes)
        if self._buffer and len(self._buffer) < size <= PREFIX_BYTES:
            raise InvalidInput(
                Reason.REQUEST_MALFORMED, "the body ends within an envelope: send all of it"
            )
        return len(self._buffer) >= size

    async def _more(self, limit: int) -> None:
        """Reads a part of the body; the buffer then has at most `limit` bytes."""
        found = await self._receive()
        if found["type"] == "http.disconnect":
            self._is_gone = True
            self._read_all.set()
            self._code = grpc.StatusCode.CANCELLED
            raise ClientGone
        self._buffer += found.get("body", b"")
        if not found.get("more_body", False):
            self._read_all.set()
        if len(self._buffer) > limit:
            raise wire.too_large(self._max_bytes)

    async def write(self, message: Message) -> None:
        """Sends a message of a stream. Raises ClientGone."""
        content = await self._encoded(message)
        async with self._sending:
            if not self._has_begun:
                await self._begin(200, self._stream_headers())
            if self._format.framing is Framing.EVENTS:
                content = wire.event(content, id=getattr(message, _RESUME_FIELD, ""))
            else:
                content = wire.enveloped(content)
            await self._body(content, more=True)

    async def send_initial_metadata(self, metadata: Sequence[tuple[str, str]]) -> None:
        """Sends headers: with the response of a unary call, of a stream at once."""
        self._leading = metadata
        if self._format.framing is not Framing.SINGLE:
            async with self._sending:
                await self._begin(200, self._stream_headers())

    def set_trailing_metadata(self, metadata: Sequence[tuple[str, str]]) -> None:
        """Sets what follows the messages; event streams leave it out."""
        self._trailing = metadata

    async def abort(
        self, code: grpc.StatusCode, details: str = "", trailing_metadata: Any = ()
    ) -> None:
        """Ends the call. Always raises Aborted."""
        self._code = code
        self.failed = wire.failure(code, details, trailing_metadata)
        raise Aborted

    def code(self) -> Any:
        """Returns the code that the call ends with; 0 while it has none."""
        return self._code or 0

    def done(self) -> bool:
        """Returns whether nothing can be sent any more."""
        return self._is_gone

    def time_remaining(self) -> float | None:
        """Returns the seconds until the client's deadline; None without one."""
        if self._until is None:
            return None
        return max(0.0, self._until - asyncio.get_running_loop().time())

    def invocation_metadata(self) -> Sequence[tuple[str, str]]:
        """Returns the headers of the request, with lower-case names."""
        return self._headers

    def auth_context(self) -> Mapping[str, Iterable[bytes]]:
        """Returns gRPC's properties of the client's certificate; empty without one."""
        found: Mapping[str, Iterable[bytes]] = self._scope.get("state", {}).get("certificate", {})
        return found

    def peer(self) -> str:
        """Returns the client's address, as gRPC writes it."""
        return wire.peer_of(self._scope.get("client"))


def _not_one(what: str) -> wire.Unacceptable:
    return wire.Unacceptable(grpc.StatusCode.UNIMPLEMENTED, what)
