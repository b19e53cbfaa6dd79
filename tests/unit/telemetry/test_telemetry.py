"""Spans and metrics reach a collector when an endpoint is set, and cost nothing else."""

import json
import subprocess
import sys
import threading
from concurrent import futures

import grpc
import pytest
from opentelemetry.proto.collector.metrics.v1 import (
    metrics_service_pb2,
    metrics_service_pb2_grpc,
)
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

from service import telemetry

SCRIPT = """
from service import telemetry
telemetry.SHUTDOWN_SECONDS = 60
telemetry.configure("palimpsest-test", "1")
with telemetry.tracer().start_as_current_span("palimpsest.step"):
    telemetry.meter().create_counter("palimpsest.steps").add(1)
telemetry.shutdown()
"""

LOADED = """
import sys
print([name for name in sys.modules if name.startswith("opentelemetry.exporter")])
"""


class Collector(
    trace_service_pb2_grpc.TraceServiceServicer, metrics_service_pb2_grpc.MetricsServiceServicer
):
    def __init__(self) -> None:
        self.names: list[str] = []

    def Export(self, request: object, context: object) -> object:
        if isinstance(request, trace_service_pb2.ExportTraceServiceRequest):
            for resource in request.resource_spans:
                for scope in resource.scope_spans:
                    self.names += [span.name for span in scope.spans]
            return trace_service_pb2.ExportTraceServiceResponse()
        assert isinstance(request, metrics_service_pb2.ExportMetricsServiceRequest)
        for measured in request.resource_metrics:
            for metrics in measured.scope_metrics:
                self.names += [metric.name for metric in metrics.metrics]
        return metrics_service_pb2.ExportMetricsServiceResponse()


@pytest.mark.parametrize("configured", [True, False])
def test_exporting_is_on_when_an_endpoint_is_set(configured: bool) -> None:
    server = grpc.server(futures.ThreadPoolExecutor(2))
    collector = Collector()
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(  # type: ignore[no-untyped-call]
        collector, server
    )
    metrics_service_pb2_grpc.add_MetricsServiceServicer_to_server(  # type: ignore[no-untyped-call]
        collector, server
    )
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    environment = {
        "PATH": "",
        "OTEL_EXPORTER_OTLP_INSECURE": "true",
        # What is tested is that it comes, not how soon.
        "OTEL_EXPORTER_OTLP_TIMEOUT": "60",
    }
    if configured:
        environment["OTEL_EXPORTER_OTLP_ENDPOINT"] = f"http://127.0.0.1:{port}"
    subprocess.run([sys.executable, "-c", SCRIPT], env=environment, check=True, timeout=100)
    server.stop(0)
    wanted = {"palimpsest.step", "palimpsest.steps"} if configured else set()
    assert wanted <= set(collector.names)
    assert bool(collector.names) == configured


STANDARD = """
import json
import os
import re
import sys
from opentelemetry import trace
from service import telemetry
telemetry.configure("palimpsest-test", "1", serves=True)
telemetry.meter().create_counter("x").add(1)
def name(provider):
    return getattr(provider, "resource", None) and provider.resource.attributes["service.name"]
reader = telemetry.served()
print(json.dumps({
    "traces": name(trace.get_tracer_provider()),
    "served": reader and re.search('service_name="(.*?)"', reader.render(True)[0].decode())[1],
    "pushed": "opentelemetry.exporter.otlp.proto.grpc.metric_exporter" in sys.modules,
    "exports": telemetry.exports(),
}), flush=True)
os._exit(0)
"""


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        (
            {},
            {
                "traces": "palimpsest-test",
                "served": "palimpsest-test",
                "pushed": True,
                "exports": True,
            },
        ),
        (
            {"OTEL_SDK_DISABLED": "True"},
            {"traces": None, "served": None, "pushed": False, "exports": False},
        ),
        (
            {"OTEL_TRACES_EXPORTER": "none"},
            {"traces": None, "served": "palimpsest-test", "pushed": True, "exports": True},
        ),
        (
            {"OTEL_METRICS_EXPORTER": "None"},
            {
                "traces": "palimpsest-test",
                "served": "palimpsest-test",
                "pushed": False,
                "exports": True,
            },
        ),
        (
            {"OTEL_SERVICE_NAME": "harbour"},
            {"traces": "harbour", "served": "harbour", "pushed": True, "exports": True},
        ),
        (
            {"OTEL_RESOURCE_ATTRIBUTES": "service.name=quay"},
            {"traces": "quay", "served": "quay", "pushed": True, "exports": True},
        ),
    ],
)
def test_the_standard_variables_hold(variables: dict[str, str], said: dict[str, object]) -> None:
    # No process listens there, and nothing is sent: this one ends before the first push.
    endpoint = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}
    done = subprocess.run(
        [sys.executable, "-c", STANDARD],
        env={"PATH": "", **endpoint, **variables},
        check=True,
        capture_output=True,
        text=True,
    )
    assert json.loads(done.stdout) == said


def test_without_an_endpoint_no_exporter_is_imported() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT + LOADED],
        env={"PATH": ""},
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout == "[]\n"


def test_a_collector_that_does_not_answer_delays_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answered = threading.Event()

    class Waiting:
        def shutdown(self) -> None:
            answered.wait()

    monkeypatch.setattr("opentelemetry.trace.get_tracer_provider", Waiting)
    monkeypatch.setattr(telemetry, "SHUTDOWN_SECONDS", 0.05)
    telemetry.shutdown()
    assert not answered.is_set()
    answered.set()
