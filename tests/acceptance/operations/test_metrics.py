"""What a running deployment serves to Prometheus: real processes, real sockets."""

import os
import re
import socket
import subprocess
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent import futures
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import grpc
import psycopg
import pytest
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_families
from prometheus_client.parser import text_string_to_metric_families as families

from service.domain.values.tenancy import DEFAULT_TENANT, session_key
from service.telemetry.names import Metric
from tests.acceptance.cli.test_cli import assert_one_clear_line, run, succeed
from tests.support import forking
from tests.support.fake_model import fake_model
from tests.support.harness import Servers, api, eventually, worker
from tests.unit.docs.test_telemetry_docs import rows
from tests.unit.telemetry.test_telemetry import Collector

OPEN = "application/openmetrics-text;version=1.0.0;q=0.8,text/plain;version=0.0.4;q=0.5"
TEXT = "".join(f"Quay {n}\n======\n\nThe quay of grey stone, number {n}.\n\n" for n in range(12))
SESSION = f"harbour-{uuid4().hex}"
MEMORY = f"quays-{uuid4().hex}"


def get(port: int, path: str, accept: str = "*/*") -> tuple[int, str]:
    asked = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers={"Accept": accept})
    try:
        with urllib.request.urlopen(asked, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with closing(error):
            return error.code, error.read().decode()


def parsed(port: int) -> dict[str, Any]:
    """Returns each family of a process by its name, by the parser of OpenMetrics."""
    said = get(port, "/metrics", OPEN)[1]
    return {one.name: one for one in open_families(said)}  # type: ignore[no-untyped-call]


def total(family: Any, **labels: str) -> float:
    """Returns the sum of a family's values with these labels."""
    wanted = labels.items()
    # Buckets and sums are about the same as the count.
    skipped = ("_bucket", "_sum", "_created")
    return sum(
        float(one.value)
        for one in (family.samples if family is not None else ())
        if wanted <= one.labels.items() and not one.name.endswith(skipped)
    )


def exemplars_of(found: dict[str, Any]) -> set[tuple[str, str]]:
    return {
        (sample.exemplar.labels["trace_id"], sample.exemplar.labels["span_id"])
        for family in found.values()
        for sample in family.samples
        if sample.exemplar
    }


class Spans(Collector):
    """A collector that knows which spans there are."""

    def __init__(self) -> None:
        super().__init__()
        self.spans: set[tuple[str, str]] = set()

    def Export(self, request: object, context: object) -> object:
        if isinstance(request, trace_service_pb2.ExportTraceServiceRequest):
            self.spans |= {
                (span.trace_id.hex(), span.span_id.hex())
                for resource in request.resource_spans
                for scope in resource.scope_spans
                for span in scope.spans
            }
        return super().Export(request, context)


@dataclass(frozen=True)
class Deployment:
    """A server, a worker and its executor, which have done some work."""

    url: str
    ports: dict[str, int]
    collector: Spans
    #: By process: trace and span.
    exemplars: dict[str, set[tuple[str, str]]]


def free_ports(count: int) -> int:
    """Returns the first of so many ports that are free."""
    while True:
        with socket.socket() as first:
            first.bind(("127.0.0.1", 0))
            port: int = first.getsockname()[1]
            if port + count > 65_535:
                continue
            try:
                for further in range(1, count):
                    with socket.socket() as one:
                        one.bind(("127.0.0.1", port + further))
            except OSError:
                continue
            return port


@pytest.fixture(scope="module")
def deployment(servers: Servers) -> Iterator[Deployment]:
    url = servers.new_database()
    server = grpc.server(futures.ThreadPoolExecutor(4))
    collector = Spans()
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(collector, server)  # type: ignore[no-untyped-call]
    metrics_service_pb2_grpc.add_MetricsServiceServicer_to_server(collector, server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    first = free_ports(3)
    with ExitStack() as stack:
        stack.callback(server.stop, 0)
        model = stack.enter_context(fake_model())
        settings = {
            **model.settings,
            "PALIMPSEST_MODEL_PRICES": '{"openai/fake": {"input_usd_per_million": 1, "output": 4}}',
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}",
            "OTEL_EXPORTER_OTLP_INSECURE": "true",
            "OTEL_METRIC_EXPORT_INTERVAL": "500",
            "OTEL_BSP_SCHEDULE_DELAY": "200",
            "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment.name=test",
        }
        listen = {"PALIMPSEST_METRICS_LISTEN": f"127.0.0.1:{first}"}
        _, address = stack.enter_context(api(url, **settings, **listen))
        listen = {"PALIMPSEST_METRICS_LISTEN": f"127.0.0.1:{first + 1}"}
        stack.enter_context(worker(url, **settings, **listen))
        at = {"PALIMPSEST_ADDRESS": address}
        create = ("memory", "create", "prism", MEMORY, "--schema", "-", "--chunk-tokens", "1")
        succeed("session", "create", SESSION, **at)
        schema = b"class Notes:\n    topics: dict[str, list[str]]\n"
        succeed(*create, "-s", SESSION, stdin=schema, **at)
        ingest = ("ingest", "-", "-s", SESSION, "-m", MEMORY, "--chunk-characters", "100")
        succeed(*ingest, stdin=TEXT.encode(), **at)
        ports = {"api": first, "worker": first + 1, "executor": first + 2}
        # Each is reported by one scrape only: the first.
        exemplars = {name: exemplars_of(parsed(port)) for name, port in ports.items()}
        yield Deployment(url, ports, collector, exemplars)


def test_each_process_serves_its_own(deployment: Deployment) -> None:
    for name, port in deployment.ports.items():
        assert get(port, "/livez") == (200, "alive\n")
        assert get(port, "/readyz") == (200, "ready\n")
        found = parsed(port)
        (target,) = found["target"].samples
        assert target.labels["service_name"] == f"palimpsest-{name}"
        assert target.labels["deployment_environment_name"] == "test"
        assert total(found["palimpsest_ready"]) == 1
        assert total(found["process_resident_memory_bytes"]) > 10_000_000
        eventually("the loop is watched", lambda port=port: _has_loop(port))
        assert total(found["db_client_operation_duration_seconds"]) > 0
    of_api, of_worker, of_executor = (parsed(one) for one in deployment.ports.values())
    calls = of_api["rpc_server_call_duration_seconds"]
    assert total(calls, rpc_method="palimpsest.v1.SessionService/CreateSession") > 0
    assert total(calls, rpc_response_status_code="OK") > 1
    steps = total(
        of_worker["messaging_process_duration_seconds"], messaging_destination_name="prism"
    )
    assert steps > 0
    assert total(of_worker["palimpsest_executor_reachable"]) == 1
    asked = of_executor["gen_ai_client_operation_duration_seconds"]
    assert total(asked, gen_ai_request_model="openai/fake", gen_ai_provider_name="openai") == steps
    assert total(of_executor["palimpsest_llm_cost_usd"]) > 0
    eventually(
        "the deployment is measured",
        lambda: (
            total(parsed(deployment.ports["api"]).get("palimpsest_lag_chunks")) == 0
            and "palimpsest_lag_chunks" in parsed(deployment.ports["api"])
        ),
    )


def test_names_and_types_are_those_of_the_guide(deployment: Deployment) -> None:
    known = {prometheus.strip("`"): kind.partition(",")[0] for _, prometheus, kind, *_ in rows()}
    seen = set()
    for port in deployment.ports.values():
        plain = get(port, "/metrics")[1]
        for family in families(plain):
            name = f"{family.name}_total" if family.type == "counter" else family.name
            if not name.startswith(("process_", "target")):
                assert known.get(name) == family.type, name
                seen.add(name)
    assert len(seen) > 20


def test_both_ways_of_exporting_have_the_same(deployment: Deployment) -> None:
    wanted = {Metric.RPC_SERVER_CALL_DURATION, Metric.MEMORIES, Metric.LLM_COST, Metric.STEPS}
    eventually("the figures are pushed too", lambda: wanted <= set(deployment.collector.names))


def test_exemplars_are_of_spans_that_there_are(deployment: Deployment) -> None:
    for name, found in deployment.exemplars.items():
        assert found, name
        eventually("the spans come", lambda found=found: found <= deployment.collector.spans)


def test_no_name_of_a_tenant_a_session_or_a_memory_is_exported(deployment: Deployment) -> None:
    secrets = [
        *(SESSION, MEMORY, str(DEFAULT_TENANT), DEFAULT_TENANT.hex),
        *(str(session_key(DEFAULT_TENANT, SESSION)), "quay", "grey stone", "sk-not-to-be-logged"),
    ]
    for port in deployment.ports.values():
        for accept in (OPEN, "text/plain"):
            said = get(port, "/metrics", accept)[1]
            assert len(said) > 5000
            assert not [one for one in secrets if one.lower() in said.lower()]
            # Nor any other id that is one of a row: hosts and traces have none of this form.
            assert not re.search(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-", said)


def test_a_port_that_is_taken_is_one_clear_line(deployment: Deployment) -> None:
    listen = f"127.0.0.1:{deployment.ports['api']}"
    for command in (("serve", "--listen", "127.0.0.1:0"), ("executor", "--socket", "/tmp/x.sock")):
        done = run(*command, "--metrics-listen", listen, PALIMPSEST_DATABASE_URL=deployment.url)
        assert_one_clear_line(done, f"cannot serve metrics at {listen}: ")
    done = run("serve", "--metrics-listen", "9464", PALIMPSEST_DATABASE_URL=deployment.url)
    assert_one_clear_line(done, "is not HOST:PORT")


def test_a_process_without_its_database_says_so_and_lives(
    deployment: Deployment, servers: Servers, url: str
) -> None:
    name = urlsplit(deployment.url).path.removeprefix("/")
    with psycopg.connect(servers.as_superuser(url), autocommit=True) as admin:

        def allow(allowed: bool) -> None:
            admin.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS {allowed}')

        allow(False)
        try:
            ended = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s"
            admin.execute(ended, (name,))
            for port in deployment.ports.values():
                eventually("it says so", lambda port=port: get(port, "/readyz")[0] == 503)
                cause = get(port, "/readyz")[1]
                assert "the database" in cause
                assert "://" not in cause
                assert get(port, "/livez") == (200, "alive\n")
                eventually("it is measured", lambda port=port: _ready(port) == 0)
        finally:
            allow(True)
        for port in deployment.ports.values():
            eventually("it is ready again", lambda port=port: get(port, "/readyz")[0] == 200)


@pytest.mark.prove
def test_up_counts_ports_up(folder: Path) -> None:
    first = free_ports(3)
    with fake_model() as model, tempfile.TemporaryFile() as log:
        command = ("up", "--listen", "127.0.0.1:0", "--metrics-listen", f"127.0.0.1:{first}")
        up = subprocess.Popen(
            [forking.python(), "-m", "service.cli", *command],
            env={**os.environ, **model.settings, "PALIMPSEST_DATA_DIR": str(folder / "data")},
            stdout=log,
            stderr=log,
        )
        try:
            for further, name in enumerate(("api", "worker", "executor")):
                service = f"palimpsest-{name}"
                eventually(name, lambda at=first + further, of=service: _is_served(at, of))
        finally:
            up.terminate()
            up.wait()


def _is_served(port: int, service: str) -> bool:
    try:
        return bool(total(parsed(port)["target"], service_name=service))
    except OSError:
        return False


def _has_loop(port: int) -> bool:
    return "palimpsest_loop_delay_seconds" in parsed(port)


def _ready(port: int) -> float:
    return total(parsed(port)["palimpsest_ready"])


@pytest.mark.parametrize("kind", ["serve", "work"])
def test_a_process_that_waits_for_its_database_lives_and_says_so(kind: str) -> None:
    with socket.socket() as nobody, socket.socket() as free:
        # Bound and not listening: connections are refused.
        for one in (nobody, free):
            one.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        environment = {
            **os.environ,
            "PALIMPSEST_DATABASE_URL": f"postgresql://x@127.0.0.1:{nobody.getsockname()[1]}/x",
            "PALIMPSEST_START_SECONDS": "100000",
            "PALIMPSEST_LISTEN": "127.0.0.1:0",
            "PALIMPSEST_METRICS_LISTEN": f"127.0.0.1:{port}",
        }
        command = [forking.python(), "-m", "service.cli", kind]
        with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) as process:

            def says_why() -> bool:
                assert process.poll() is None, "it waits"
                try:
                    status, said = get(port, "/readyz")
                except urllib.error.URLError:
                    return False
                assert status == 503
                return said.startswith("it is starting: the database cannot be reached: ")

            try:
                eventually("it says that it is starting, and why", says_why)
                assert get(port, "/livez") == (200, "alive\n")
                assert parsed(port)["palimpsest_ready"].samples[0].value == 0
            finally:
                process.kill()
