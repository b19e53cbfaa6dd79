"""Alerts and panels: by promtool with made-up figures, and by Prometheus with a real deployment's.

In one file, so that they share the deployment where files are run side by side: a panel's query has
something to show when Prometheus scrapes it.
"""

import asyncio
import math
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from tests.deployment.watched import ALERTS, PROMETHEUS, metrics_of, queries, rules
from tests.deployment.watching import WINDOW, Watched, eventually, shortened
from tests.support.harness import EVENTUALLY_SECONDS
from verification.attacks.outages import SCHEMA

NEEDED = "Prometheus is not installed: run `make setup-deploy`"


def promtool(*arguments: str, folder: Path = PROMETHEUS) -> subprocess.CompletedProcess[str]:
    """Returns a check of rules or of their tests."""
    assert shutil.which("promtool"), NEEDED
    return subprocess.run(
        ["promtool", *arguments], cwd=folder, capture_output=True, text=True, check=False
    )


def test_rules_are_sound() -> None:
    done = promtool("check", "rules", ALERTS.name)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(rules())} rules found" in done.stdout


def test_each_alert_fires_when_it_should_and_only_then() -> None:
    files = sorted(str(path.relative_to(PROMETHEUS)) for path in PROMETHEUS.glob("tests/*.yml"))
    assert files
    done = promtool("test", "rules", *files)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("file", "right", "wrong"),
    [
        ("memories.yml", "palimpsest_lag_seconds", "palimpsest_lag_second"),
        ("memories.yml", 'state="stalled"', 'state="stale"'),
        ("models.yml", "/ sum by (model) (rate", "* sum by (model) (rate"),
        ("database.yml", "unless palimpsest_database_refused_total offset 15m", ""),
    ],
)
def test_a_mistake_in_a_rule_is_noticed(file: str, right: str, wrong: str, tmp_path: Path) -> None:
    text = ALERTS.read_text()
    assert right in text
    (tmp_path / ALERTS.name).write_text(text.replace(right, wrong))
    (tmp_path / "tests").mkdir()
    shutil.copy(PROMETHEUS / "tests" / file, tmp_path / "tests")
    done = promtool("test", "rules", f"tests/{file}", folder=tmp_path)
    assert done.returncode == 1
    assert "FAILED" in done.stdout + done.stderr


async def test_a_stall_is_reported_and_resolved(deployment: Watched) -> None:
    prometheus, provider = deployment.prometheus, deployment.provider
    provider.refuses.add("[refused]")
    async with deployment.connect() as client:
        session = await client.create_session("stalls")
        memory = await session.create_memory("m", schema_source=SCHEMA)
        await session.append("This is [refused].")
        await prometheus.until_firing("PalimpsestMemoriesStalled")
        provider.refuses.clear()
        await memory.retry()
        await memory.get(fully_applied=True, timeout=EVENTUALLY_SECONDS)
    await prometheus.until_resolved("PalimpsestMemoriesStalled")


async def test_a_lag_is_reported_and_resolved(deployment: Watched) -> None:
    prometheus = deployment.prometheus
    deployment.kill("worker")
    async with deployment.connect() as client:
        session = await client.create_session("lags")
        memory = await session.create_memory("m", schema_source=SCHEMA)
        for number in range(3):
            await session.append(f"Number {number} is read late.")
        await prometheus.until_firing(
            "PalimpsestLagHigh", "PalimpsestNoWorker", "PalimpsestQueueNotDrained"
        )
        deployment.start("worker")
        await memory.get(fully_applied=True, timeout=EVENTUALLY_SECONDS)
    await prometheus.until_resolved(
        "PalimpsestLagHigh", "PalimpsestNoWorker", "PalimpsestQueueNotDrained"
    )


async def test_outages_are_reported_and_resolved(deployment: Watched) -> None:
    prometheus, postgres = deployment.prometheus, deployment.servers.postgres
    assert postgres._process is not None
    postgres._process.kill()
    postgres._process.wait()
    deployment.servers.valkey.kill()
    deployment.kill("executor")
    database = ("PalimpsestNotReady", "PalimpsestNoMeasurement", "PalimpsestExecutorUnreachable")
    await prometheus.until_firing(*database)
    postgres.restart()
    deployment.servers.valkey.restart()
    deployment.start("executor")
    # A worker connects to its executor again with the next call.
    async with deployment.connect() as client:
        session = client.session("good")
        await session.append("All is back.")
        await session.memory("m").get(fully_applied=True, timeout=EVENTUALLY_SECONDS)
    await prometheus.until_resolved(*database)
    deployment.kill("api")
    await prometheus.until_firing("PalimpsestNoApi")
    deployment.start("api")
    await prometheus.until_resolved("PalimpsestNoApi")


async def test_what_dashboards_show_was_measured(deployment: Watched) -> None:
    # What happened before: memories held, a key refused, a write refused.
    for alert in (
        "PalimpsestMemoriesHeld",
        "PalimpsestModelCircuitOpen",
        "PalimpsestWritesRefused",
        "PalimpsestModelSilent",
    ):
        told = f'ALERTS{{alertname="{alert}",alertstate="firing"}}'
        assert await deployment.prometheus.has(f"count_over_time({told}[1h])"), alert


def test_a_minute_is_a_second_in_rules_that_are_tried() -> None:
    text = shortened(ALERTS.read_text())
    assert "for: 5s" in text
    assert "for: 5m" not in text
    assert "[6m]" in text
    assert "[1h]" not in text
    assert "offset 15s" in text


async def test_every_panel_has_data(deployment: Watched) -> None:
    # A server that was started again has counted no call yet.
    async with deployment.connect() as client:
        await client.session("good").info()
    wanted = queries(WINDOW)
    assert len({one.panel for one in wanted}) >= 60
    empty: list[str] = []

    async def all_have_data() -> bool:
        found = await asyncio.gather(*(deployment.prometheus.ask(one.expr) for one in wanted))
        empty[:] = [
            f"{one.panel}: {one.expr} -> {values}"
            for one, values in zip(wanted, found, strict=True)
            if not values or not all(math.isfinite(value) for _, value in values)
        ]
        return not empty

    try:
        await eventually("every panel has data", all_have_data, 60)
    except AssertionError as error:
        raise AssertionError("\n".join(empty)) from error


async def test_every_metric_that_is_named_is_scraped(deployment: Watched) -> None:
    named = {name for one in queries(WINDOW) for name in metrics_of(one.expr)}
    named |= {name for rule in rules() for name in metrics_of(rule["expr"])}
    scraped = set(await deployment.prometheus.get("label/__name__/values"))
    assert len(named) >= 50
    assert sorted(named - scraped) == []


async def test_slow_calls_lead_to_traces(deployment: Watched) -> None:
    now = time.time()
    for name in ("rpc_server_call_duration_seconds", "gen_ai_client_operation_duration_seconds"):
        found = await deployment.prometheus.get(
            "query_exemplars",
            query=f"{name}_bucket",
            start=str(now - 3600),
            end=str(now + 60),
        )
        traces = {one["labels"]["trace_id"] for series in found for one in series["exemplars"]}
        assert traces, name
        assert all(len(one) == 32 for one in traces)
