"""Traces that go on elsewhere: in another process, or later, where work waits in a table.

OpenTelemetry keeps the span under way in the context of a task. Here it is read from what a client
sends and written to what others are sent, and spans go on from contexts that were stored.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from uuid import UUID

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, ProxyTracerProvider, Span, SpanContext, SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from service.telemetry import tracer
from service.telemetry.names import Attribute, MessagingOperation

#: Characters of a header that are read: W3C Trace Context grants 512 to `tracestate`, and its
#: `traceparent` has 55.
MAX_HEADER_CHARACTERS = 512
#: Links of one span.
MAX_LINKS = 128
_HEADERS = ("traceparent", "tracestate")
_W3C = TraceContextTextMapPropagator()


def is_on() -> bool:
    """Returns whether spans are made in this process."""
    return not isinstance(trace.get_tracer_provider(), ProxyTracerProvider)


def incoming(metadata: Iterable[tuple[str, str | bytes]]) -> Context | None:
    """Returns the context that a client's metadata names; None: none that can be read."""
    carrier: dict[str, list[str]] = {}
    for key, value in metadata:
        if key in _HEADERS and isinstance(value, str):
            carrier.setdefault(key, []).append(value)
    if len(carrier.get("traceparent", ())) != 1:
        return None
    if sum(map(len, carrier.get("tracestate", ()))) > MAX_HEADER_CHARACTERS:
        del carrier["tracestate"]
    return _read(carrier)


def parsed(traceparent: str) -> Context | None:
    """Returns the context that a `traceparent` names; None: none that can be read."""
    return _read({"traceparent": [traceparent]}) if traceparent else None


def _read(carrier: Mapping[str, list[str]]) -> Context | None:
    if len(carrier["traceparent"][0]) > MAX_HEADER_CHARACTERS:
        return None
    context = _W3C.extract(carrier, Context())
    return context if trace.get_current_span(context).get_span_context().is_valid else None


def traceparent() -> str:
    """Returns the span under way as a `traceparent`, sampled or not; empty: there is none."""
    carrier: dict[str, str] = {}
    _W3C.inject(carrier)
    return carrier.get("traceparent", "")


def sampled() -> SpanContext | None:
    """Returns the context of the span under way if it is sampled."""
    context = trace.get_current_span().get_span_context()
    return context if context.is_valid and context.trace_flags.sampled else None


def begins_here() -> bool:
    """Returns whether the current span is the first of its trace."""
    span = trace.get_current_span()
    return span.is_recording() and getattr(span, "parent", None) is None


def error_type(error: BaseException) -> str:
    """Returns what `error.type` says of an error: never its words."""
    reason = getattr(error, "reason", None)
    return str(getattr(reason, "value", None) or type(error).__name__)


def failed(span: Span, error: BaseException) -> None:
    """Marks a span as failed, without the words of the error."""
    span.set_status(StatusCode.ERROR)
    span.set_attribute(Attribute.ERROR_TYPE, error_type(error))


def after(context: SpanContext) -> Context:
    """Returns the context of what goes on from a span that is not under way here."""
    return trace.set_span_in_context(trace.NonRecordingSpan(context), Context())


@contextmanager
def within(context: SpanContext | None) -> Iterator[None]:
    """Surrounds what belongs to a span that was begun elsewhere, if to any."""
    if context is None:
        yield
        return
    with trace.use_span(trace.NonRecordingSpan(context)):
        yield


@contextmanager
def continued(traceparent: str) -> Iterator[None]:
    """Surrounds what belongs to the trace that another process of ours names, if it does."""
    context = parsed(traceparent)
    with within(None if context is None else trace.get_current_span(context).get_span_context()):
        yield


@contextmanager
def following(
    name: str,
    causes: Sequence[SpanContext],
    attributes: Mapping[str, AttributeValue],
    *,
    kind: SpanKind = SpanKind.INTERNAL,
) -> Iterator[Span]:
    """Opens a span that goes on from its `causes`, which were begun elsewhere.

    A child of the newest of them where all are one trace, which then has all of it; else, and
    without any, of the current span. It has a link to each, up to MAX_LINKS. Of what is raised
    it has the type alone: its words may be those of a text.
    """
    causes = causes[-MAX_LINKS:]
    one = len({cause.trace_id for cause in causes}) == 1
    with tracer().start_as_current_span(
        name,
        context=after(causes[-1]) if one else None,
        kind=kind,
        links=[Link(cause) for cause in causes],
        attributes=attributes,
        record_exception=False,
        set_status_on_exception=False,
    ) as span:
        try:
            yield span
        except BaseException as error:
            # What was released, or ended with its process, is no success either.
            failed(span, error)
            raise


def mark(name: str, cause: SpanContext | None, attributes: Mapping[str, AttributeValue]) -> None:
    """Leaves a span without length in the one under way, with a link to its cause, if any."""
    if trace.get_current_span().is_recording():
        links = [] if cause is None else [Link(cause)]
        tracer().start_span(name, links=links, attributes=attributes).end()


def memory(operation: str, store_id: UUID) -> AbstractContextManager[object]:
    """Opens the span of what is done to a memory, or to a session's log, where it is traced."""
    if not trace.get_current_span().is_recording():
        return nullcontext()
    attributes = {
        Attribute.GEN_AI_OPERATION_NAME: operation,
        Attribute.GEN_AI_MEMORY_STORE_ID: str(store_id),
    }
    return following(operation, (), attributes)


@contextmanager
def process(
    kind: str,
    causes: Sequence[SpanContext],
    attributes: Mapping[str, AttributeValue],
) -> Iterator[Span]:
    """Opens the span of work that was taken from a table: `process KIND`; see `following`."""
    with following(
        f"process {kind}",
        causes,
        kind=SpanKind.CONSUMER,
        attributes={
            Attribute.MESSAGING_SYSTEM: "palimpsest",
            Attribute.MESSAGING_OPERATION_NAME: MessagingOperation.STEP,
            Attribute.MESSAGING_OPERATION_TYPE: MessagingOperation.PROCESS,
            Attribute.MESSAGING_DESTINATION_NAME: kind,
            **attributes,
        },
    ) as span:
        yield span
