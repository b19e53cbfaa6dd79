"""Traces appends: each submission has a span, which the readers of its chunks continue."""

import asyncio

from opentelemetry.context import Context
from opentelemetry.trace import Link, SpanContext, SpanKind

from service.domain.log.appending import Submission
from service.telemetry import tracer, tracing
from service.telemetry.names import Attribute, MessagingOperation, SpanName
from service.usecases.log.submissions import Appended


def sent(
    submission: Submission, done: "asyncio.Future[Appended]", parent: Context | None
) -> SpanContext | None:
    """Begins the `send` span of a submission, which ends with `done`; None if it is not sampled."""
    call = tracing.sampled()
    if call is None and (parent is None or not tracing.is_on()):
        return None
    span = tracer().start_span(
        SpanName.SEND,
        context=parent,
        kind=SpanKind.PRODUCER,
        # Where it is no child of the call that sent it.
        links=[Link(call)] if call is not None and parent is not None else (),
        attributes={
            Attribute.MESSAGING_SYSTEM: "palimpsest",
            Attribute.MESSAGING_OPERATION_NAME: MessagingOperation.SEND,
            Attribute.MESSAGING_OPERATION_TYPE: MessagingOperation.SEND,
            Attribute.MESSAGING_DESTINATION_NAME: "log",
            Attribute.MESSAGING_BATCH_MESSAGE_COUNT: len(submission.chunks),
            Attribute.SESSION_KEY: str(submission.session_key),
        },
    )

    if not span.is_recording():
        return None

    def end(done: "asyncio.Future[Appended]") -> None:
        error = None if done.cancelled() else done.exception()
        if error is not None:
            tracing.failed(span, error)
        elif not done.cancelled():
            span.set_attribute(Attribute.TO_POSITION, done.result().position)
        span.end()

    done.add_done_callback(end)
    return span.get_span_context()
