"""A span around each call, in its client's trace, and its subject in lines of the log."""

from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager
from typing import Any

import grpc
from opentelemetry.context import Context as TraceContext
from opentelemetry.trace import Span, SpanKind, StatusCode

from service.domain.values.tenancy import memory_id, session_key
from service.rpc.interceptors.base import Around, Context, status_of, subject_of, system_of
from service.rpc.interceptors.tenancy import current_tenant
from service.telemetry import logs, tracer, tracing
from service.telemetry.names import Attribute

#: What ends a call by a fault of the service's, as OpenTelemetry's conventions have it.
_FAULTS = {
    grpc.StatusCode.UNKNOWN.name,
    grpc.StatusCode.DEADLINE_EXCEEDED.name,
    grpc.StatusCode.UNIMPLEMENTED.name,
    grpc.StatusCode.INTERNAL.name,
    grpc.StatusCode.UNAVAILABLE.name,
    grpc.StatusCode.DATA_LOSS.name,
}


class Tracing(Around):
    """Opens a span about each call of our own services; health checks and the like have none."""

    @asynccontextmanager
    async def around(self, method: str, request: Any, context: Context) -> AsyncIterator[None]:
        """Opens a span named after the method."""
        try:
            if tracing.is_on() and method.startswith("/palimpsest."):
                with _span(method.lstrip("/"), context) as span:
                    try:
                        yield
                    finally:
                        _end(span, status_of(context))
            else:
                yield
        finally:
            logs.unsay()


def _span(name: str, context: Context) -> AbstractContextManager[Span]:
    return tracer().start_as_current_span(
        name,
        context=tracing.incoming(context.invocation_metadata() or ()) or TraceContext(),
        kind=SpanKind.SERVER,
        attributes={Attribute.RPC_SYSTEM_NAME: system_of(context), Attribute.RPC_METHOD: name},
        record_exception=False,
        set_status_on_exception=False,
    )


def _end(span: Span, status: str) -> None:
    span.set_attribute(Attribute.RPC_RESPONSE_STATUS_CODE, status)
    if status in _FAULTS:
        span.set_status(StatusCode.ERROR)
        span.set_attribute(Attribute.ERROR_TYPE, status)


class LogSubject(Around):
    """Adds the keys of a call's session and memory to lines of the log."""

    @asynccontextmanager
    async def around(self, method: str, request: Any, context: Context) -> AsyncIterator[None]:
        """Adds them until `Tracing` ends, so also to lines about the end of the call."""
        say_subject(request)
        yield


def say_subject(request: Any) -> None:
    """Adds the keys of a message's session and memory to lines of the log of its call."""
    about = subject_of(request)
    if not about.session:
        return
    key = session_key(current_tenant(), about.session)
    logs.say(session=key, memory=memory_id(key, about.memory) if about.memory else None)
