"""What a failed step leaves in its trace."""

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from service.domain.prompting.asking import NoUse
from service.domain.prompting.ends import End
from service.usecases.memories.step_failures import trace


def traced(error: Exception) -> dict[str, object]:
    """Returns the attributes of an error that was raised within a span."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with provider.get_tracer("t").start_as_current_span("step") as span:
        try:
            raise error
        except Exception as raised:
            trace(span, raised)
    (finished,) = exporter.get_finished_spans()
    (event,) = finished.events
    return dict(event.attributes or {})


@pytest.mark.parametrize(
    "error",
    [
        NoUse("no revision; it begins: secret", end=End.EMPTY, plain="no revision"),
        KeyError("secret"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_trace_has_no_words_of_what_failed(error: Exception) -> None:
    error.__cause__ = ValueError("secret")
    found = traced(error)
    assert str(found["exception.type"]).endswith(type(error).__name__)
    assert "raise error" in str(found["exception.stacktrace"]), "where it was raised"
    assert "secret" not in str(found)
