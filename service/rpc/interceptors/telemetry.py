"""Two metrics about each call."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from service.rpc.interceptors.base import Around, Context, status_of, system_of
from service.telemetry import meter
from service.telemetry.names import Attribute, Metric

#: From the duration of an append to that of a long stream.
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


class Telemetry(Around):
    """Measures every call of our own services, health checks and the like not."""

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
        """Records how long the call took."""
        if not method.startswith("/palimpsest."):
            yield
            return
        name = method.lstrip("/")
        attributes = {Attribute.RPC_SYSTEM_NAME: system_of(context), Attribute.RPC_METHOD: name}
        start = time.perf_counter()
        self._in_flight.add(1)
        try:
            yield
        finally:
            self._in_flight.add(-1)
            known = {**attributes, Attribute.RPC_RESPONSE_STATUS_CODE: status_of(context)}
            self._seconds.record(time.perf_counter() - start, known)
