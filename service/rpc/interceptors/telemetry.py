"""A span and two metrics about each call."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
from grpc.aio import AbortError
from opentelemetry.trace import SpanKind, Status, StatusCode

from service.rpc.interceptors.base import Around, Context
from service.telemetry import meter, tracer
from service.telemetry.names import Attribute, Metric

#: From what an append takes to what a stream may last.
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


class Telemetry(Around):
    """Measures every call of our own services."""

    def __init__(self) -> None:
        super().__init__()
        self._seconds = meter().create_histogram(
            Metric.RPC_SERVER_CALL_DURATION,
            unit="s",
            description="Duration of calls",
            explicit_bucket_boundaries_advisory=SECONDS,
        )
        self._in_flight = meter().create_up_down_counter(
            Metric.CALLS_IN_FLIGHT, description="Calls under way, streams among them"
        )

    @asynccontextmanager
    async def around(self, method: str, request: Any, context: Context) -> AsyncIterator[None]:
        """Opens a span named after the method, and records how long the call took."""
        name = method.lstrip("/")
        attributes = {Attribute.RPC_SYSTEM_NAME: "grpc", Attribute.RPC_METHOD: name}
        start = time.perf_counter()
        self._in_flight.add(1)
        with tracer().start_as_current_span(
            name, kind=SpanKind.SERVER, attributes=attributes
        ) as span:
            try:
                yield
            except AbortError:
                span.set_status(Status(StatusCode.ERROR))
                raise
            finally:
                self._in_flight.add(-1)
                # Unset, it is no StatusCode but 0.
                code = getattr(context.code(), "name", grpc.StatusCode.OK.name)
                known = {**attributes, Attribute.RPC_RESPONSE_STATUS_CODE: code}
                self._seconds.record(time.perf_counter() - start, known)
