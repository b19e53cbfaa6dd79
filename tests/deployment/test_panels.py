"""Every panel has something to show: its query, asked of Prometheus that scrapes a deployment."""

import asyncio
import math
import time

from tests.deployment.watched import metrics_of, queries, rules
from tests.deployment.watching import WINDOW, Watched, eventually


async def test_every_panel_has_data(deployment: Watched) -> None:
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
