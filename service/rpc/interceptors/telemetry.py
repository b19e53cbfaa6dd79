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


class Telemetry(Around):
    """Measures every call of our own services."""

    def __init__(self) -> None:
        super().__init__()
        self._seconds = meter().create_histogram(
            "rpc.server.duration", unit="s", description="Duration of calls"
        )
        self._in_flight = meter().create_up_down_counter(
            "palimpsest.calls.in_flight", description="Calls under way, streams among them"
        )

    @asynccontextmanager
    async def around(self, method: str, request: Any, context: Context) -> AsyncIterator[None]:
        """Opens a span named after the method, and records how long the call took."""
        attributes = {"rpc.system": "grpc", "rpc.method": method.rpartition("/")[2]}
        start = time.perf_counter()
        self._in_flight.add(1)
        with tracer().start_as_current_span(
            method.lstrip("/"), kind=SpanKind.SERVER, attributes=attributes
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
                known = {**attributes, "rpc.grpc.status_code": code}
                self._seconds.record(time.perf_counter() - start, known)
