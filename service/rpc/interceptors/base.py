"""The base of interceptors, which run around every call; deadlines, and what a call is about."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass
from inspect import isasyncgen
from typing import Any

import grpc
from google.protobuf.message import Message
from grpc import aio

Context = aio.ServicerContext[Any, Any]

#: Part of a deadline that is kept for sending the reply, and its bounds in seconds.
_SHARE = 0.1
_MIN_SECONDS = 0.02
_MAX_SECONDS = 0.5


class Around(aio.ServerInterceptor):
    """An interceptor that runs `around` about each call.

    Subclasses give an asynchronous context manager that sees the method's full name,
    the request (None when the client streams) and the context.
    """

    def __init__(self) -> None:
        # Handlers never change while a server runs, so each is wrapped once.
        self._wrapped: dict[str, Any] = {}

    def around(
        self, method: str, request: Any, context: Context
    ) -> AbstractAsyncContextManager[None]:
        """Returns the context manager of one call."""
        raise NotImplementedError

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Wraps the handler; part of grpc.aio's interface."""
        method = handler_call_details.method
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        known = self._wrapped.get(method)
        if known is None or known[0] is not handler:
            known = self._wrapped[method] = (handler, self.wrap(method, handler))
        return known[1]

    def wrap(self, method: str, handler: Any) -> Any:
        """Returns a handler that runs `around` about the given one."""
        codec = {
            "request_deserializer": handler.request_deserializer,
            "response_serializer": handler.response_serializer,
        }
        streams_in = handler.request_streaming
        if not handler.response_streaming:
            answer = handler.stream_unary if streams_in else handler.unary_unary

            async def unary(request: Any, context: Context) -> Any:
                async with self.around(method, None if streams_in else request, context):
                    return await answer(request, context)

            if streams_in:
                return grpc.stream_unary_rpc_method_handler(unary, **codec)
            return grpc.unary_unary_rpc_method_handler(unary, **codec)
        inner = handler.stream_stream if streams_in else handler.unary_stream

        # No generator: one that waits at a `yield` when its call ends is left to the garbage
        # collector, and what is about the call would end late and in another context.
        async def streaming(request: Any, context: Context) -> None:
            async with self.around(method, None if streams_in else request, context):
                await respond(inner(request, context), context)

        if streams_in:
            return grpc.stream_stream_rpc_method_handler(streaming, **codec)
        return grpc.unary_stream_rpc_method_handler(streaming, **codec)


async def respond(responses: Any, context: Context) -> None:
    """Writes what a handler yields, or lets one write that does so itself."""
    if not isasyncgen(responses):
        await responses
        return
    async with aclosing(responses):
        async for response in responses:
            await context.write(response)


def status_of(context: Context) -> str:
    """Returns the status that a call has ended with, by its name."""
    # Unset, it is no StatusCode but 0.
    return str(getattr(context.code(), "name", grpc.StatusCode.OK.name))


def system_of(context: Context) -> str:
    """Returns the protocol of a call, as OpenTelemetry names it."""
    return str(getattr(context, "rpc_system", "grpc"))


def deadline_of(context: Context) -> float | None:
    """Returns when to stop waiting, in the event loop's time; None when the client set none.

    It is a little before the client's own deadline: after that gRPC reports only that time is
    up, and not how far things are.
    """
    remaining: float | None = context.time_remaining()
    if remaining is None:
        return None
    kept = min(max(remaining * _SHARE, _MIN_SECONDS), _MAX_SECONDS)
    return asyncio.get_running_loop().time() + max(remaining - kept, 0.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Subject:
    """The ids in a request; empty where it has none."""

    session: str = ""
    memory: str = ""


def subject_of(request: Any) -> Subject:
    """Returns what a request names, itself or in the resource that it creates or changes."""
    session, memory = getattr(request, "session", ""), getattr(request, "memory", "")
    if isinstance(session, Message):
        # The Session of CreateSession and UpdateSession.
        return Subject(session=getattr(session, "id", ""))
    if isinstance(memory, Message):
        # The Memory of CreateMemory and UpdateMemory.
        return Subject(session=getattr(memory, "session", ""), memory=getattr(memory, "id", ""))
    budget = getattr(request, "budget", None)
    return Subject(session=session, memory=memory) if budget is None else subject_of(budget)
