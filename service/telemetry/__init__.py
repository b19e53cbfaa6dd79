"""OpenTelemetry: pushed by OTLP, served to Prometheus, both, or free of cost.

The standard variables of OpenTelemetry's SDK apply; those that are read here decide what is set up.
"""

import asyncio
import os
import platform
import socket
import threading
import time
from typing import TYPE_CHECKING

from opentelemetry import metrics, trace
from opentelemetry.metrics import Meter
from opentelemetry.trace import Tracer

from service.telemetry.names import Attribute, Metric

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import MetricReader
    from opentelemetry.sdk.resources import Resource

    from service.telemetry.prometheus import Exposition

#: The standard variables that turn pushing on: of everything, or of one of both.
ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
TRACES_ENDPOINT = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
METRICS_ENDPOINT = "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT"
#: How long `shutdown` waits for a collector. One that does not answer would delay a process for
#: longer than orchestrators allow.
SHUTDOWN_SECONDS = 3.0
#: How often the delay of the event loop is measured.
LOOP_SECONDS = 0.25
_LATE_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_SCOPE = "palimpsest"

#: What this process has measured, where it is served.
_served: "Exposition | None" = None


def configure(service: str, version: str, *, serves: bool = False) -> None:
    """Sets up traces and metrics that are exported or served; once in a process.

    `serves`: whether metrics are served (`service.telemetry.endpoint`).
    """
    global _served
    if _is_off():
        return
    if _pushes("OTEL_TRACES_EXPORTER", TRACES_ENDPOINT):
        # These imports take a while, and most processes never need them.
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        tracing = TracerProvider(resource=_resource(service, version), shutdown_on_exit=False)
        tracing.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        trace.set_tracer_provider(tracing)
    readers: list[MetricReader] = []
    if _pushes("OTEL_METRICS_EXPORTER", METRICS_ENDPOINT):
        from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

        readers.append(PeriodicExportingMetricReader(OTLPMetricExporter()))
    if serves:
        from service.telemetry.prometheus import Exposition

        _served = Exposition()
        readers.append(_served.reader)
    if readers:
        from opentelemetry.sdk.metrics import MeterProvider

        resource = _resource(service, version)
        metrics.set_meter_provider(
            MeterProvider(resource=resource, metric_readers=readers, shutdown_on_exit=False)
        )


def _is_off() -> bool:
    return os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"


def _pushes(exporter: str, own_endpoint: str) -> bool:
    named = os.environ.get(ENDPOINT) or os.environ.get(own_endpoint)
    return bool(named) and os.environ.get(exporter, "otlp").strip().lower() != "none"


def _resource(service: str, version: str) -> "Resource":
    """Returns the resource that is measured; the standard variables take precedence."""
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource

    said = OTELResourceDetector().detect().attributes
    ours = {
        Attribute.SERVICE_NAME: service,
        Attribute.SERVICE_VERSION: version,
        Attribute.SERVICE_INSTANCE_ID: f"{socket.gethostname()}-{os.getpid()}",
        Attribute.PROCESS_RUNTIME_VERSION: platform.python_version(),
    }
    return Resource.create({**ours, **said})


def served() -> "Exposition | None":
    """Returns what this process has measured, if it is served."""
    return _served


def exports() -> bool:
    """Returns whether metrics are exported or served."""
    if _is_off():
        return False
    return _served is not None or _pushes("OTEL_METRICS_EXPORTER", METRICS_ENDPOINT)


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
    """Returns the tracer of our spans."""
    return trace.get_tracer(_SCOPE)


def meter() -> Meter:
    """Returns the meter of our metrics."""
    return metrics.get_meter(_SCOPE)


async def watch_loop() -> None:
    """Records how late the event loop is, until it is cancelled."""
    late = meter().create_histogram(
        Metric.LOOP_DELAY,
        unit="s",
        description="How late the event loop came to what was due",
        explicit_bucket_boundaries_advisory=_LATE_SECONDS,
    )
    while True:
        begun = time.perf_counter()
        await asyncio.sleep(LOOP_SECONDS)
        late.record(max(0.0, time.perf_counter() - begun - LOOP_SECONDS))
