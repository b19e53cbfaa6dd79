"""Receives the messages of calls: within a time, within a bound of memory, and well-formed.

gRPC would receive the message of a unary call itself, before any interceptor runs and for as
long as the client likes. On the wire a unary call is a stream of one message. So each handler
is given to gRPC as one that reads a stream, and reads its messages here.
"""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from grpc import aio

from service.domain.values.errors import DeadlineExceeded, Exhausted, InvalidInput, Unavailable
from service.domain.values.reasons import Reason
from service.rpc.arrivals import Arrivals
from service.rpc.interceptors.base import Around, Context, respond
from service.rpc.stream_guard import StreamGuard

#: Returns a request from its bytes. Raises DecodeError.
Deserialize = Callable[[bytes], Any]

#: A stream that was closed for being idle may be opened again at once; this is for those
#: that were closed together.
_REOPEN_SECONDS = 0.1


class Receiving(Around):
    """Reads the requests of every method.

    Raises InvalidInput (REQUEST_MALFORMED), and what `Arrivals.place` raises. A stream whose
    client sends nothing for `idle_seconds` ends with Unavailable (STREAM_IDLE).
    """

    def __init__(
        self,
        arrivals: Arrivals,
        guard: StreamGuard,
        *,
        overdrawn: Arrivals,
        idle_seconds: float,
    ) -> None:
        """`overdrawn`: the places of streams whose connection the guard closed streams of."""
        super().__init__()
        self._arrivals = arrivals
        self._overdrawn = overdrawn
        self._guard = guard
        self._idle_seconds = idle_seconds

    def wrap(self, method: str, handler: Any) -> Any:
        """Returns a handler that reads its messages from the context."""
        deserialize = handler.request_deserializer
        codec = {"response_serializer": handler.response_serializer}
        if not handler.response_streaming:
            unary_inner = handler.unary_unary

            async def unary(_: Any, context: Context) -> Any:
                return await unary_inner(await self._request(context, deserialize), context)

            return grpc.stream_unary_rpc_method_handler(unary, **codec)
        streams_in = handler.request_streaming
        inner = handler.stream_stream if streams_in else handler.unary_stream

        async def streaming(_: Any, context: Context) -> None:
            if streams_in:
                first = await self._first(context)
                request: Any = _Frames(context, deserialize, first, self._wait)
            else:
                request = await self._request(context, deserialize)
            await respond(inner(request, context), context)

        return grpc.stream_stream_rpc_method_handler(streaming, **codec)

    async def _request(self, context: Context, deserialize: Deserialize) -> Any:
        """Returns the only message of a call."""
        first = await self._first(context)
        if first is aio.EOF:
            raise InvalidInput(
                Reason.REQUEST_MALFORMED, "the call ended without its message: call again"
            )
        return _read(first, deserialize)

    def _wait(self, context: Context) -> AbstractAsyncContextManager[None]:
        """Waits for a further message of a stream.

        Raises TimeoutError. Where streams of the connection held too much, they have few places,
        and it raises what `Arrivals.place` does.
        """
        connection = context.peer()
        if self._guard.is_overdrawn(connection):
            return self._overdrawn.place(connection)
        return self._guard.waiting(connection, self._idle_seconds)

    async def _first(self, context: Context) -> Any:
        async with self._arrivals.place(context.peer()):
            return await context.read()


class _Frames:
    """The messages of a stream from its client."""

    def __init__(
        self,
        context: Context,
        deserialize: Deserialize,
        first: Any,
        wait: Callable[[Context], AbstractAsyncContextManager[None]],
    ) -> None:
        self._context = context
        self._deserialize = deserialize
        self._first: Any = first
        self._wait = wait

    def __aiter__(self) -> "_Frames":
        return self

    async def __anext__(self) -> Any:
        """Returns the next message. Raises Unavailable (STREAM_IDLE) when none comes."""
        frame, self._first = self._first, None
        if frame is None:
            frame = await self._next()
        if frame is aio.EOF:
            raise StopAsyncIteration
        return _read(frame, self._deserialize)

    async def _next(self) -> Any:
        try:
            async with self._wait(self._context):
                return await self._context.read()
        except (TimeoutError, DeadlineExceeded, Exhausted) as error:
            raise Unavailable(
                Reason.STREAM_IDLE,
                "this stream was idle; open it again for what comes",
                retry_seconds=_REOPEN_SECONDS,
            ) from error


def _read(message: bytes, deserialize: Deserialize) -> Any:
    try:
        return deserialize(message)
    except DecodeError as error:
        # Its words are of the library, and change with it.
        raise InvalidInput(
            Reason.REQUEST_MALFORMED,
            "the message is no protobuf of this method's request: encode it by the proto",
        ) from error
