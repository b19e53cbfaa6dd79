"""Refuses calls about sessions that the client's credentials do not allow."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
from google.protobuf.message import Message

from service.domain.access.identity import Scope
from service.rpc.interceptors.base import Around, Context, respond
from service.rpc.interceptors.tenancy import current_identity

#: Methods without a session in their request that show nothing of other sessions: their use cases
#: leave those out, or the method is about none.
OPEN_METHODS = frozenset(
    {"ListSessions", "CheckSchema", "GetOperation", "WaitOperation", "CancelOperation"}
)


class SessionLimit(Around):
    """Checks the sessions that a request names, where credentials are limited to some.

    A request that names none, where it could be about all, is refused. It also checks what a
    field needs besides the method: a search that reranks asks a model.
    """

    def wrap(self, method: str, handler: Any) -> Any:
        """Also checks the messages of streams from clients."""
        if not handler.request_streaming or not method.startswith("/palimpsest."):
            return super().wrap(method, handler)
        inner = handler.stream_stream

        async def streaming(requests: Any, context: Context) -> None:
            if current_identity().session_prefix:
                requests = _checked(method.rpartition("/")[2], requests)
            await respond(inner(requests, context), context)

        return grpc.stream_stream_rpc_method_handler(
            streaming,
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )

    @asynccontextmanager
    async def around(self, method: str, request: Any, context: Context) -> AsyncIterator[None]:
        """Checks the request of a client that does not stream. Raises PermissionDenied."""
        if request is not None and method.startswith("/palimpsest."):
            identity = current_identity()
            if getattr(request, "rerank", False):
                identity.require(Scope.ASK)
            if identity.session_prefix:
                check_sessions(method.rpartition("/")[2], request)
        yield


async def _checked(method: str, requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
    """Yields the messages of a stream; the first has to name a session that is allowed."""
    is_open = False
    async for request in requests:
        if not is_open or any(sessions_in(request)):
            check_sessions(method, request)
        is_open = True
        yield request


def check_sessions(method: str, request: Message) -> None:
    """Raises PermissionDenied for a request about a session that is not allowed."""
    identity = current_identity()
    named = list(sessions_in(request))
    for session in named:
        identity.require_session(session)
    if not named and method not in OPEN_METHODS:
        raise identity.session_refused()


def sessions_in(message: Message) -> Iterator[str]:
    """Yields the ids of the sessions that a request names, at any depth."""
    for field, value in message.ListFields():
        if isinstance(value, str):
            if field.name == "session":
                yield value
        elif isinstance(value, Message):
            if field.name == "session" and "id" in value.DESCRIPTOR.fields_by_name:
                yield value.id  # type: ignore[attr-defined]  # the Session of CreateSession
            else:
                yield from sessions_in(value)
        elif field.message_type is not None and not field.message_type.GetOptions().map_entry:
            for one in value:
                yield from sessions_in(one)
