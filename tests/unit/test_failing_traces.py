"""What a failed step leaves in its trace."""

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from service.domain.asking import NoUse
from service.domain.ends import End
from service.usecases.failing import trace


def traced(error: Exception) -> dict[str, object]:
    """The attributes of an error that was raised within a span."""
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


def test_a_trace_has_no_words_of_the_model() -> None:
    found = traced(NoUse("no revision; it begins: secret", end=End.EMPTY, plain="no revision"))
    assert found["exception.message"] == "no revision"
    assert "secret" not in str(found)


def test_a_defect_is_traced_whole() -> None:
    found = traced(ValueError("of our own"))
    assert found["exception.message"] == "of our own"
    assert "Traceback" in str(found["exception.stacktrace"])
