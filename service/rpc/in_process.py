"""Calls within the process of an API server, by the same interceptors and handlers as all others.

A surface that has calls of its own, such as the tools for models, uses the Python client with this
in place of a channel. So authentication, scopes, quotas, limits and telemetry are those of gRPC.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import grpc
import structlog
from grpc import aio

from service.rpc.http.call import Aborted
from service.rpc.pipeline import Handler
from storage.engine.tasks import cancel

_log = structlog.get_logger("palimpsest.rpc")

#: Messages of a stream that wait for their reader.
_QUEUED = 16
#: Headers that the client sets for a call; `Caller` alone names the caller.
_FORWARDED = ("traceparent", "tracestate")

Metadata = Sequence[tuple[str, str]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Caller:
    """The client for which calls are made."""

    #: Its address, as gRPC writes it.
    peer: str
    #: Its headers, with lower-case names: credentials, and its trace.
    metadata: Metadata = ()
    #: gRPC's properties of its certificate.
    certificate: Mapping[str, Iterable[bytes]]


class InProcessCall:
    """One call; it has what this service uses of `grpc.aio.ServicerContext`."""

    #: OpenTelemetry's name of the protocol that the client speaks.
    rpc_system = "mcp"

    def __init__(
        self, caller: Caller, request: Any, metadata: Metadata, timeout: float | None
    ) -> None:
        self._caller = caller
        self._request: Any = request
        self._metadata = metadata
        loop = asyncio.get_running_loop()
        self.until = None if timeout is None else loop.time() + timeout
        self._code: grpc.StatusCode | None = None
        #: What `abort` was given.
        self.failed: aio.AioRpcError | None = None
        #: What the handler of a stream has written; None at the end.
        self.written: asyncio.Queue[Any] = asyncio.Queue(_QUEUED)

    async def read(self) -> Any:
        """Returns the request, and then `aio.EOF`."""
        request, self._request = self._request, aio.EOF
        return request

    async def write(self, message: Any) -> None:
        """Passes a message of a stream on."""
        await self.written.put(message)

    async def abort(
        self, code: grpc.StatusCode, details: str = "", trailing_metadata: Any = ()
    ) -> NoReturn:
        """Ends the call. Always raises Aborted."""
        self.end_with(code, details, trailing_metadata)
        raise Aborted

    def end_with(
        self, code: grpc.StatusCode, details: str, trailing_metadata: Any = ()
    ) -> aio.AioRpcError:
        """Sets what the call ends with, and returns it."""
        self._code = code
        self.failed = aio.AioRpcError(
            code, aio.Metadata(), aio.Metadata(*trailing_metadata), details=details
        )
        return self.failed

    def code(self) -> Any:
        """Returns the code that the call ends with; 0 while it has none."""
        return self._code or 0

    def done(self) -> bool:
        """Returns False: the client is this process."""
        return False

    def time_remaining(self) -> float | None:
        """Returns the seconds until the deadline; None without one."""
        if self.until is None:
            return None
        return max(0.0, self.until - asyncio.get_running_loop().time())

    def invocation_metadata(self) -> Metadata:
        """Returns the headers of the caller, with the trace of the work in this process."""
        own = [one for one in self._metadata if one[0] in _FORWARDED]
        names = {name for name, _ in own}
        return [*(one for one in self._caller.metadata if one[0] not in names), *own]

    def auth_context(self) -> Mapping[str, Iterable[bytes]]:
        """Returns gRPC's properties of the caller's certificate; empty without one."""
        return self._caller.certificate

    def peer(self) -> str:
        """Returns the caller's address."""
        return self._caller.peer


class InProcessChannel(aio.Channel):
    """A channel to the methods of this process, for one caller."""

    def __init__(self, methods: Mapping[str, Handler], caller: Caller) -> None:
        """`methods`: by their paths, with the interceptors about them."""
        self._methods = methods
        self._caller = caller

    def unary_unary(self, method: str, *_: Any, **__: Any) -> Any:
        """Returns what makes calls of a method; part of gRPC's interface."""
        return self._caller_of(method, _awaited)

    def unary_stream(self, method: str, *_: Any, **__: Any) -> Any:
        """Returns what makes calls of a method; part of gRPC's interface."""
        return self._caller_of(method, _Stream)

    def stream_unary(self, method: str, *_: Any, **__: Any) -> Any:
        """Returns nothing of use: streams of clients are for other transports."""
        return None

    def stream_stream(self, method: str, *_: Any, **__: Any) -> Any:
        """Returns nothing of use: streams of clients are for other transports."""
        return None

    def _caller_of(self, method: str, made: Callable[[Handler, InProcessCall], Any]) -> Any:
        def call(request: Any, *, timeout: float | None = None, metadata: Metadata = ()) -> Any:
            return made(
                self._methods[method], InProcessCall(self._caller, request, metadata, timeout)
            )

        return call

    async def close(self, grace: float | None = None) -> None:
        """Does nothing; part of gRPC's interface."""

    async def __aenter__(self) -> "InProcessChannel":
        return self

    async def __aexit__(self, *_: object) -> None:
        return None

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        """Returns READY; part of gRPC's interface."""
        return grpc.ChannelConnectivity.READY

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        """Never returns; part of gRPC's interface."""
        await asyncio.Event().wait()

    async def channel_ready(self) -> None:
        """Returns at once; part of gRPC's interface."""


async def _awaited(handler: Handler, call: InProcessCall) -> Any:
    """Returns the response of a unary call. Raises AioRpcError."""
    # A task has variables of its own: the identity of the caller is set for this call alone.
    work = asyncio.create_task(handler.stream_unary(None, call))
    try:
        await asyncio.wait([work], timeout=call.time_remaining())
        if not work.done():
            raise call.end_with(grpc.StatusCode.DEADLINE_EXCEEDED, "the deadline is exceeded")
    finally:
        await cancel([work])
    failed = _failure(work, call)
    if failed is not None:
        raise failed
    return work.result()


class _Stream:
    """The responses of a call, which runs once they are read."""

    def __init__(self, handler: Handler, call: InProcessCall) -> None:
        self._handler = handler
        self._call = call
        self._work: asyncio.Task[Any] | None = None

    async def __aiter__(self) -> AsyncIterator[Any]:
        """Yields the responses. Raises AioRpcError."""
        self._work = work = asyncio.create_task(self._run())
        try:
            while (message := await self._next()) is not None:
                yield message
        finally:
            await cancel([work])
        failed = _failure(work, self._call)
        if failed is not None:
            raise failed

    async def _next(self) -> Any:
        try:
            async with asyncio.timeout(self._call.time_remaining()):
                return await self._call.written.get()
        except TimeoutError:
            code = grpc.StatusCode.DEADLINE_EXCEEDED
            raise self._call.end_with(code, "the deadline is exceeded") from None

    async def _run(self) -> None:
        try:
            await self._handler.stream_stream(None, self._call)
        finally:
            await self._call.written.put(None)

    def cancel(self) -> bool:
        """Ends the call."""
        return self._work is not None and self._work.cancel()


def _failure(work: "asyncio.Task[Any]", call: InProcessCall) -> aio.AioRpcError | None:
    """Returns what a handler that has ended raised; None for a response."""
    if work.cancelled():
        return call.end_with(grpc.StatusCode.CANCELLED, "the server stops")
    error = work.exception()
    if error is None:
        return None
    if isinstance(error, Aborted) and call.failed is not None:
        return call.failed
    # `Errors` gives all others a number, and the client that.
    _log.error("call failed outside of its interceptors", exc_info=error)
    return call.end_with(grpc.StatusCode.INTERNAL, "internal error: report it to the operator")
