"""What is counted of a call."""

from dataclasses import replace
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from service.domain.calls.ledger import Call
from service.domain.prompting.flows import Purpose
from service.llm.providers.labels import ModelLabels
from service.settings.config import Config
from service.usecases.calls import metrics
from service.usecases.calls.metrics import CallMeters

CALL = Call(
    key=b"k",
    purpose=Purpose.REVISE,
    template="t/1",
    model="m/x",
    reply="r",
    failure=None,
    input_tokens=100,
    predicted_cached_tokens=64,
    reported_cached_tokens=48,
    cache_write_tokens=None,
    output_tokens=7,
    cost_micro_usd=12,
    latency_ms=1,
    residual="evicted",
)


@pytest.fixture(autouse=True)
def labels(monkeypatch: pytest.MonkeyPatch) -> None:
    made = ModelLabels()
    made.configure(Config(model=CALL.model))
    monkeypatch.setattr(metrics, "LABELS", made)


def counted(*calls: Call) -> dict[tuple[str, ...], Any]:
    """Returns each counter's value by its name and attributes."""
    reader = InMemoryMetricReader()
    provider = MeterProvider(metric_readers=[reader], shutdown_on_exit=False)
    meters = CallMeters(provider.get_meter("test"))
    for call in calls:
        meters.count(call)
    data = reader.get_metrics_data()
    assert data is not None
    found: dict[tuple[str, ...], Any] = {}
    for resource in data.resource_metrics:
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                name = metric.name.removeprefix("palimpsest.llm.")
                for point in metric.data.data_points:
                    attributes = map(str, (point.attributes or {}).values())
                    found[name, *attributes] = point.value  # type: ignore[union-attr]
    return found


def test_a_call_is_counted_by_model_and_purpose() -> None:
    assert counted(CALL, replace(CALL, reported_cached_tokens=80, residual="more")) == {
        ("calls", "m/x", "revise", "complete"): 2,
        ("tokens", "m/x", "revise", "input"): 200,
        ("tokens", "m/x", "revise", "predicted_cached"): 128,
        ("tokens", "m/x", "revise", "reported_cached"): 128,
        ("tokens", "m/x", "revise", "output"): 14,
        ("residual.tokens", "m/x", "revise", "evicted"): 16,
        ("residual.tokens", "m/x", "revise", "more"): 16,
        ("cost", "m/x", "revise"): 24e-6,
    }


def test_what_is_unknown_and_what_failed_counts_nothing() -> None:
    unknown = replace(CALL, reported_cached_tokens=None, cost_micro_usd=None, residual="unknown")
    failed = replace(CALL, reply=None, failure="no")
    assert counted(unknown, failed) == {
        ("calls", "m/x", "revise", "complete"): 1,
        ("calls", "m/x", "revise", "failure"): 1,
        ("tokens", "m/x", "revise", "input"): 100,
        ("tokens", "m/x", "revise", "predicted_cached"): 64,
        ("tokens", "m/x", "revise", "output"): 7,
    }


def test_models_that_clients_make_up_are_counted_together() -> None:
    found = counted(*(replace(CALL, model=f"made-up/{number}") for number in range(50)))
    assert found["calls", "other", "revise", "complete"] == 50
    assert {attributes[1] for attributes in found} == {"other"}
