"""Gauges of a deployment, by the figures that a collector would get."""

from collections.abc import AsyncIterator
from concurrent import futures
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import grpc
import psycopg
import pytest
from opentelemetry.metrics import Meter
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2_grpc
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader

from service.domain.calls.conditions import Condition
from service.domain.prompting.faults import Fault
from service.domain.values.tenancy import DEFAULT_TENANT
from service.llm.gateway import call_executor
from service.llm.providers.labels import ModelLabels
from service.rpc.interceptors import telemetry as rpc_telemetry
from service.settings.config import Config
from service.usecases.operations import gauges
from service.usecases.operations.gauges import (
    DeploymentGauges,
    observe_circuits,
    observe_connections,
    observe_whether,
)
from storage.engine.database import Database
from storage.engine.errors import Unreachable
from storage.memories import queue, revisions
from storage.memories.queue import QueueFacts
from storage.operations import measures
from tests.integration.support.scripted import (
    ITEM,
    STATE,
    TREE,
    Script,
    make,
    prism_method,
    state_method,
    tree_method,
)
from tests.support.harness import Servers, api, eventually
from tests.unit.telemetry.test_telemetry import Collector

Admin = psycopg.AsyncConnection[Any]


class Collected:
    """A meter, and what is read from it."""

    def __init__(self) -> None:
        self._reader = InMemoryMetricReader()
        self._provider = MeterProvider(metric_readers=[self._reader], shutdown_on_exit=False)

    @property
    def meter(self) -> Meter:
        return self._provider.get_meter("test")

    def points(self) -> dict[tuple[str, ...], Any]:
        """Returns each point by its metric and attributes."""
        data = self._reader.get_metrics_data()
        found: dict[tuple[str, ...], Any] = {}
        for resource in data.resource_metrics if data is not None else ():
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    for point in metric.data.data_points:
                        labels = map(str, (point.attributes or {}).values())
                        found[metric.name.removeprefix("palimpsest."), *labels] = point
        return found

    def figures(self) -> dict[tuple[str, ...], float]:
        """Returns the value of each gauge and counter."""
        points = self.points().items()
        return {name: point.value for name, point in points if hasattr(point, "value")}


@pytest.fixture
async def admin(servers: Servers, url: str) -> AsyncIterator[Admin]:
    connection = await psycopg.AsyncConnection.connect(servers.as_superuser(url), autocommit=True)
    async with connection:
        yield connection


async def test_memories_that_are_behind_held_or_stalled_are_counted(
    database: Database, admin: Admin
) -> None:
    collected = Collected()
    gauges = DeploymentGauges(database, dead_after_seconds=15, by=collected.meter)
    assert collected.figures() == {}, "nothing is measured yet, which is not 0"
    await gauges.measure()
    nothing = collected.figures()
    assert set(nothing.values()) == {0}
    assert {name for name, *_ in nothing} == {
        "memories",
        "lag.chunks",
        "lag.seconds",
        "queue.items",
        "queue.seconds",
    }

    await make(database, ["a", "b", "c"])
    await admin.execute(
        "UPDATE chunk SET created_at = now() - interval '1 hour' WHERE position = 1"
    )
    await gauges.measure()
    found = collected.figures()
    assert (found["memories", "behind"], found["memories", "held"]) == (1, 0)
    assert {found["lag.chunks", name] for name in ("sum", "p95", "max")} == {3}
    assert all(3600 <= found["lag.seconds", name] < 7200 for name in ("p95", "max"))
    # The memory, and the words of its session.
    assert (found["queue.items", "queued"], found["queue.items", "running"]) == (2, 0)
    assert found["queue.seconds", "max"] > 0

    await admin.execute("UPDATE memory SET held_reason = 'x', ready_at = now() + interval '1 hour'")
    await gauges.measure()
    found = collected.figures()
    assert (found["memories", "behind"], found["memories", "held"]) == (1, 1)

    await admin.execute("UPDATE memory SET held_reason = NULL, ready_at = now()")
    script = Script(reply=lambda ask, number: (_ for _ in ()).throw(KeyError("a defect")))
    for _ in range(3):
        await admin.execute("UPDATE memory SET ready_at = now()")
        await prism_method(database, script).drain(ITEM)
    await gauges.measure()
    found = collected.figures()
    assert (found["memories", "stalled"], found["memories", "behind"]) == (1, 0)
    assert found["lag.chunks", "max"] == 0


async def test_what_cannot_be_measured_has_no_figures(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def gone(*_: Any, **__: Any) -> QueueFacts:
        raise Unreachable("gone")

    collected = Collected()
    gauges = DeploymentGauges(database, dead_after_seconds=15, by=collected.meter)
    monkeypatch.setattr(queue, "read_facts", gone)
    await gauges.measure()
    assert {name for name, *_ in collected.figures()} == {"memories", "lag.chunks", "lag.seconds"}
    monkeypatch.setattr(measures, "_LAG", "SELECT pg_sleep(60)")
    monkeypatch.setattr(measures, "MEASURE_SECONDS", 1)
    await gauges.measure()
    assert collected.figures() == {}


async def test_the_sweeper_sees_no_lag_outside_of_a_measurement(database: Database) -> None:
    await make(database, ["a"])
    async with database.sweeping() as tx:
        for table, expected in (("memory", 1), ("session", 1), ("chunk", 0), ("dead_letter", 0)):
            found = await tx.fetch(f"SELECT count(*) FROM {table}")
            assert found[0][0] == expected, table
    for column in ("text", "thought", "metadata"):
        with pytest.raises(Exception, match="permission denied"):
            async with database.sweeping() as tx:
                await tx.execute(f"SELECT {column} FROM chunk")


async def test_connections_are_counted_by_their_state(database: Database) -> None:
    collected = Collected()
    observe_connections(database, by=collected.meter)

    def counted() -> tuple[float, float]:
        found = collected.figures()
        name = "db.client.connection.count", "core"
        return found[*name, "used"], found[*name, "idle"]

    assert counted() == (0, 0), "none is open yet"
    async with database.transaction(DEFAULT_TENANT):
        assert counted() == (1, 0)
    assert counted() == (0, 1)


@pytest.mark.parametrize("kind", ["prism", "tree", "state"])
async def test_the_time_from_append_to_commit_is_recorded(
    database: Database, admin: Admin, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    collected = Collected()
    monkeypatch.setattr(revisions, "_APPLIED", collected.meter.create_histogram("applied"))
    spec = {"prism": None, "tree": TREE, "state": STATE}[kind]
    await make(database, ["word " * 60] * 6, **({} if spec is None else {"spec": spec}))
    await admin.execute("UPDATE memory SET created_at = now() - interval '50 minutes'")
    await admin.execute(
        "UPDATE chunk SET created_at = now() - interval '1 hour' WHERE position < 4"
    )
    workers: dict[str, Any] = {"prism": prism_method, "tree": tree_method, "state": state_method}
    await workers[kind](database, Script()).drain(ITEM)
    (point,) = collected.points().values()
    assert isinstance(point, HistogramDataPoint)
    assert point.attributes == {"kind": kind}
    assert point.count >= 1
    assert 3000 <= point.max < 3300, "a chunk that is older than its memory waits since then"
    assert point.min >= 0


def test_a_server_exports_what_it_measures_when_an_endpoint_is_set(url: str) -> None:
    server = grpc.server(futures.ThreadPoolExecutor(2))
    collector = Collector()
    metrics_service_pb2_grpc.add_MetricsServiceServicer_to_server(collector, server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    settings = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}",
        "OTEL_EXPORTER_OTLP_INSECURE": "true",
        "OTEL_METRIC_EXPORT_INTERVAL": "200",
        # The test has no receiver for traces.
        "OTEL_TRACES_SAMPLER": "always_off",
    }
    wanted = {"palimpsest.memories", "palimpsest.lag.seconds", "palimpsest.queue.items"}
    wanted |= {"db.client.connection.count"}
    try:
        with api(url, **settings):
            eventually("the gauges are exported", lambda: wanted <= set(collector.names))
    finally:
        server.stop(0)


async def test_calls_under_way_are_counted_as_long_as_they_are(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    collected = Collected()
    monkeypatch.setattr(rpc_telemetry, "meter", lambda: collected.meter)
    around = rpc_telemetry.Telemetry().around
    context: Any = SimpleNamespace(code=lambda: None)
    async with around("/palimpsest.v1.X/A", None, context):
        async with around("/palimpsest.v1.X/B", None, context):
            assert collected.figures()["calls.in_flight",] == 2
        with pytest.raises(KeyError):
            async with around("/palimpsest.v1.X/C", None, context):
                raise KeyError("a call that breaks")
    assert collected.figures()["calls.in_flight",] == 0


async def test_calls_of_other_services_are_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    collected = Collected()
    monkeypatch.setattr(rpc_telemetry, "meter", lambda: collected.meter)
    around = rpc_telemetry.Telemetry().around
    context: Any = SimpleNamespace(code=lambda: None)
    for method in (
        "/grpc.health.v1.Health/Check",
        "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
        "/palimpsest.v1.X/A",
    ):
        async with around(method, None, context):
            pass
    points = collected.points()
    assert {name for name in points if name[0] == "rpc.server.call.duration"} == {
        ("rpc.server.call.duration", "grpc", "palimpsest.v1.X/A", "OK")
    }


def test_what_is_left_alone_is_counted_by_model_and_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    labels = ModelLabels()
    labels.configure(Config(model="m/x"))
    monkeypatch.setattr(gauges, "LABELS", labels)
    collected, left = Collected(), list[Condition]()
    observe_circuits(lambda: left, by=collected.meter)
    assert collected.figures() == {}
    first = Condition(
        deployment="a",
        model="m/x",
        fault=Fault.FAILING,
        cause="it fails",
        failures=3,
        since=datetime.now(UTC),
        probe_seconds=1.0,
    )
    left += [first, replace(first, deployment="b"), replace(first, fault=Fault.KEY_REFUSED)]
    left.append(replace(first, model="made/up"))
    assert collected.figures() == {
        ("llm.circuits.open", "m/x", Fault.FAILING.value): 2,
        ("llm.circuits.open", "m/x", Fault.KEY_REFUSED.value): 1,
        ("llm.circuits.open", "other", Fault.FAILING.value): 1,
    }
    left.clear()
    assert collected.figures() == {}, "one that is closed again is not said to be open"


def test_what_is_reached_or_not_is_one_or_zero() -> None:
    collected, reached = Collected(), [True]
    observe_whether(
        "palimpsest.reachable", "Whether it is", lambda: reached[-1], by=collected.meter
    )
    assert collected.figures() == {("reachable",): 1}
    reached.append(False)
    assert collected.figures() == {("reachable",): 0}


async def test_model_calls_under_way_are_counted_as_long_as_they_are(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    collected, seen = Collected(), list[float]()
    monkeypatch.setattr(
        call_executor, "metrics", SimpleNamespace(get_meter=lambda _: collected.meter)
    )

    async def look() -> None:
        seen.append(collected.figures()["llm.calls.in_flight",])

    await make(database, ["a", "b"])
    await prism_method(database, Script(meanwhile=look)).drain(ITEM)
    assert seen == [1, 1]
    assert collected.figures()["llm.calls.in_flight",] == 0
