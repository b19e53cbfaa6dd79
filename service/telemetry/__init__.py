"""OpenTelemetry: exported by OTLP when an endpoint is set, else free of cost."""

import os
import threading
import time

from opentelemetry import metrics, trace
from opentelemetry.metrics import Meter
from opentelemetry.trace import Tracer

from service.telemetry.names import Attribute

#: The standard variable that turns exporting on.
ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
#: How long `shutdown` waits for a collector. One that does not answer would hold a
#: process up for longer than orchestrators let it take.
SHUTDOWN_SECONDS = 3.0
_SCOPE = "palimpsest"


def configure(service: str, version: str) -> None:
    """Sets exporting up, if an endpoint is set; once in a process."""
    if not exports():
        return
    # These imports take a while, and most processes never need them.
    from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    resource = Resource.create(
        {Attribute.SERVICE_NAME: service, Attribute.SERVICE_VERSION: version}
    )
    tracing = TracerProvider(resource=resource, shutdown_on_exit=False)
    tracing.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(tracing)
    reader = PeriodicExportingMetricReader(OTLPMetricExporter())
    metrics.set_meter_provider(
        MeterProvider(resource=resource, metric_readers=[reader], shutdown_on_exit=False)
    )


def exports() -> bool:
    """Returns whether anything is done with what is measured."""
    return bool(os.environ.get(ENDPOINT))


def shutdown() -> None:
    """Sends what is left; gives up after SHUTDOWN_SECONDS."""
    ending = []
    for provider in (trace.get_tracer_provider(), metrics.get_meter_provider()):
        stop = getattr(provider, "shutdown", None)
        if stop is not None:
            # Daemons: the process may end while they still try.
            ending.append(threading.Thread(target=stop, daemon=True))
    for thread in ending:
        thread.start()
    until = time.monotonic() + SHUTDOWN_SECONDS
    for thread in ending:
        thread.join(max(0.0, until - time.monotonic()))


def tracer() -> Tracer:
    """Where our spans are made."""
    return trace.get_tracer(_SCOPE)


def meter() -> Meter:
    """Where our metrics are made."""
    return metrics.get_meter(_SCOPE)
