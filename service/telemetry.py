"""OpenTelemetry: exported by OTLP when an endpoint is set, else free of cost."""

import os

from opentelemetry import metrics, trace
from opentelemetry.metrics import Meter
from opentelemetry.trace import Tracer

#: The standard variable that turns exporting on.
ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
_SCOPE = "palimpsest"


def configure(service: str, version: str) -> None:
    """Sets exporting up, if an endpoint is set; once in a process."""
    if not os.environ.get(ENDPOINT):
        return
    # These imports take a while, and most processes never need them.
    from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    resource = Resource.create({"service.name": service, "service.version": version})
    tracing = TracerProvider(resource=resource)
    tracing.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(tracing)
    reader = PeriodicExportingMetricReader(OTLPMetricExporter())
    metrics.set_meter_provider(MeterProvider(resource=resource, metric_readers=[reader]))


def shutdown() -> None:
    """Sends what is left."""
    for provider in (trace.get_tracer_provider(), metrics.get_meter_provider()):
        stop = getattr(provider, "shutdown", None)
        if stop is not None:
            stop()


def tracer() -> Tracer:
    """Where our spans are made."""
    return trace.get_tracer(_SCOPE)


def meter() -> Meter:
    """Where our metrics are made."""
    return metrics.get_meter(_SCOPE)
