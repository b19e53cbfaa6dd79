"""Memories as resources: listed, read, and watched."""

import asyncio
from collections.abc import Awaitable, Sequence
from contextlib import AsyncExitStack, suppress
from functools import partial
from typing import Any, TypeVar
from urllib.parse import quote, unquote

import mcp_types as types
from mcp.shared.exceptions import MCPError
from mcp.shared.subscriptions import (
    SUBSCRIPTION_ID_META_KEY,
    ResourceUpdated,
    event_to_notification,
)

import palimpsest
from palimpsest import NotFound, PalimpsestError, Watch
from service.mcp.rendering import value_text
from service.mcp.scope import Context, ScopeOf, ToolScope
from service.mcp.subscriptions import SubscriberOf, check_number, opened, report

T = TypeVar("T")

_PREFIX = "palimpsest://memories/"
_JSON = "application/json"


class Resources:
    """The handlers of a server."""

    def __init__(self, scope_of: ScopeOf, subscriber_of: SubscriberOf | None) -> None:
        self._scope_of = scope_of
        self._subscriber_of = subscriber_of

    async def list(self, context: Context, _: Any) -> types.ListResourcesResult:
        """Returns the memories of the session."""
        found = await _done(_memories(self._scope_of(context)))
        return types.ListResourcesResult(
            resources=[
                types.Resource(
                    uri=uri_of(one.id),
                    name=one.id,
                    description=f"A memory of the session ({one.kind})",
                    mime_type=_JSON,
                )
                for one in found
            ],
            ttl_ms=0,
            cache_scope="private",
        )

    async def templates(self, _: Context, __: Any) -> types.ListResourceTemplatesResult:
        """Returns an empty list: `list` names all that can be read."""
        return types.ListResourceTemplatesResult(
            resource_templates=[], ttl_ms=0, cache_scope="private"
        )

    async def read(
        self, context: Context, params: types.ReadResourceRequestParams
    ) -> types.ReadResourceResult:
        """Returns the value of a memory."""
        memory = _named(self._scope_of(context), params.uri)
        try:
            state = await _done(memory.get())
        except NotFound as error:
            raise _missing(params.uri) from error
        content = types.TextResourceContents(
            uri=params.uri, mime_type=_JSON, text=value_text(state.value)
        )
        return types.ReadResourceResult(contents=[content], ttl_ms=0, cache_scope="private")

    async def listen(
        self, context: Context, params: types.SubscriptionsListenRequestParams
    ) -> types.SubscriptionsListenResult:
        """Reports changes of memories until the client goes away or the service does."""
        scope, number = self._scope_of(context), context.request_id
        uris = sorted(set(params.notifications.resource_subscriptions or ()))
        check_number(len(uris))
        meta: dict[str, Any] = {SUBSCRIPTION_ID_META_KEY: number}

        async def send(message: Any) -> None:
            await context.session.send_notification(message, related_request_id=number)

        async with AsyncExitStack() as stack:
            watched: dict[str, Watch] = {}
            for uri, memory in [(uri, _named(scope, uri)) for uri in uris]:
                with suppress(NotFound):
                    # A stream that is lost ends: it would delay a server that stops.
                    watched[uri] = await _done(opened(memory, 0.0))
                    stack.push_async_callback(watched[uri].aclose)
            await send(
                types.SubscriptionsAcknowledgedNotification(
                    params=types.SubscriptionsAcknowledgedNotificationParams(
                        notifications=types.SubscriptionFilter(
                            resource_subscriptions=list(watched) or None
                        ),
                        _meta=meta,
                    )
                )
            )
            async with asyncio.TaskGroup() as group:
                for uri, watch in watched.items():
                    event = event_to_notification(ResourceUpdated(uri=uri), meta)
                    group.create_task(report(watch, partial(send, event)))
        return types.SubscriptionsListenResult(_meta=meta)

    async def subscribe(
        self, context: Context, params: types.SubscribeRequestParams
    ) -> types.EmptyResult:
        """Reports changes of a memory from now on, until the client is gone."""
        assert self._subscriber_of is not None, "it is served"
        subscriber = self._subscriber_of(context)
        memory = _named(self._scope_of(context), params.uri)
        try:
            await _done(
                subscriber.kept.add(params.uri, memory, partial(subscriber.changed, params.uri))
            )
        except NotFound as error:
            raise _missing(params.uri) from error
        return types.EmptyResult()

    async def unsubscribe(
        self, context: Context, params: types.UnsubscribeRequestParams
    ) -> types.EmptyResult:
        """Ends the reports of a memory."""
        assert self._subscriber_of is not None, "it is served"
        await self._subscriber_of(context).kept.remove(params.uri)
        return types.EmptyResult()


def uri_of(memory: str) -> str:
    """Returns the URI of a memory of the session."""
    return _PREFIX + quote(memory, safe="")


def _named(scope: ToolScope, uri: str) -> palimpsest.Memory:
    """Returns the memory that a URI names. Raises MCPError."""
    name = unquote(uri.removeprefix(_PREFIX)) if uri.startswith(_PREFIX) else ""
    if not name or uri != uri_of(name):
        raise _missing(uri)
    return scope.session.memory(name)


def _missing(uri: str) -> MCPError:
    return MCPError(
        types.INVALID_PARAMS, "no such resource: resources/list names all", {"uri": uri[:300]}
    )


async def _memories(scope: ToolScope) -> Sequence[palimpsest.MemoryInfo]:
    try:
        return await scope.session.memories()
    except NotFound:
        # The session is made by the first text that is remembered.
        return ()


async def _done(work: Awaitable[T]) -> T:
    """Returns what is awaited, or raises the error that says what to do."""
    try:
        return await work
    except NotFound:
        raise
    except (PalimpsestError, ValueError) as error:
        raise MCPError(types.INTERNAL_ERROR, str(error)) from error
