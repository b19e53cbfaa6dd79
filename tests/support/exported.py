"""Spans of what runs in the test's own process."""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, Sampler


class Exported:
    """The spans that have ended so far."""

    def __init__(self, exporter: InMemorySpanExporter) -> None:
        self._exporter = exporter

    def named(self, name: str) -> list[ReadableSpan]:
        """Returns the spans of a name."""
        return [one for one in self._exporter.get_finished_spans() if one.name == name]

    def text(self) -> str:
        """Returns all that leaves the process."""
        return "".join(one.to_json() for one in self._exporter.get_finished_spans())


@contextmanager
def exported(sampler: Sampler = ALWAYS_ON) -> Iterator[Exported]:
    """Has the process make spans meanwhile."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(sampler)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with mock.patch.object(trace, "_TRACER_PROVIDER", provider):
        yield Exported(exporter)
