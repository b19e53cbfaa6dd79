"""What is measured and traced of a step that was released before its end."""

import asyncio
from unittest import mock

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader
from opentelemetry.trace import StatusCode

from service.domain.prism.spec import PrismSpec
from service.telemetry import tracing
from service.usecases.memories import metrics
from tests.support.exported import exported


async def release() -> None:
    """A step that is cancelled while it waits for its model."""
    begun = asyncio.Event()

    async def step() -> None:
        with tracing.process("prism", (), {}), metrics.timed(PrismSpec.kind):
            begun.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(step())
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_step_that_was_released_is_no_success() -> None:
    reader = InMemoryMetricReader()
    meter = MeterProvider(metric_readers=[reader], shutdown_on_exit=False).get_meter("test")
    with (
        exported() as spans,
        mock.patch.object(metrics, "_SECONDS", meter.create_histogram("s")),
    ):
        await release()
    (span,) = spans.named("process prism")
    assert span.status.status_code is StatusCode.ERROR
    assert (span.attributes or {})["error.type"] == "CancelledError"
    data = reader.get_metrics_data()
    assert data is not None
    (point,) = data.resource_metrics[0].scope_metrics[0].metrics[0].data.data_points
    assert isinstance(point, HistogramDataPoint)
    assert point.count == 1
    assert (point.attributes or {})["error.type"] == "CancelledError"
