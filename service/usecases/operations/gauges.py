"""Exports gauges of a deployment: what waits, what is behind and what is in use.

Each API server measures the whole deployment, so that no process has to be the only one: read
one server's figures, or the greatest. Gauges of a process are that process's own.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

import structlog
from opentelemetry.metrics import Meter, Observation

from service.domain.calls.conditions import Condition
from service.llm.providers.labels import LABELS
from service.telemetry import meter
from service.telemetry.names import Attribute, Metric
from storage.engine.database import Database
from storage.engine.errors import StorageError
from storage.memories import queue
from storage.memories.queue import QueueFacts
from storage.operations import measures
from storage.operations.measures import Lag

_log = structlog.get_logger("palimpsest.gauges")

#: How often a deployment is measured, in seconds …
MEASURE_SECONDS = 15.0
#: … and how many times as long as the last look took it waits at least: a look over very many
#: memories takes no more than a twentieth of one connection.
PAUSE_FACTOR = 19.0

_STATE, _STATISTIC = Attribute.STATE, Attribute.STATISTIC
#: By name, unit, label and description of a gauge: the fields that it shows, by label.
_OF_LAG: Mapping[tuple[str, str, str, str], Mapping[str, str]] = {
    (Metric.MEMORIES, "{memory}", _STATE, "Memories that do not go on or are behind"): {
        "stalled": "stalled",
        "held": "held",
        "behind": "behind",
    },
    (Metric.LAG_CHUNKS, "{chunk}", _STATISTIC, "Chunks that memories are behind"): {
        "sum": "sum_chunks",
        "p95": "p95_chunks",
        "max": "max_chunks",
    },
    (Metric.LAG_SECONDS, "s", _STATISTIC, "Age of chunks that wait for memories"): {
        "p95": "p95_seconds",
        "max": "max_seconds",
    },
}
_OF_QUEUE: Mapping[tuple[str, str, str, str], Mapping[str, str]] = {
    (Metric.QUEUE_ITEMS, "{item}", _STATE, "Items that wait, and items in hand"): {
        "queued": "queued",
        "running": "running",
    },
    (Metric.QUEUE_SECONDS, "s", _STATISTIC, "Age of items that wait"): {"max": "oldest_seconds"},
}

Observations = Iterable[Observation]


def observe(
    name: str,
    description: str,
    read: Callable[[], Observations],
    *,
    unit: str = "",
    by: Meter | None = None,
) -> None:
    """Adds a gauge that is read each time that it is collected."""
    (by or meter()).create_observable_gauge(
        name, [lambda _: read()], unit=unit, description=description
    )


def observe_whether(
    name: str, description: str, is_true: Callable[[], bool], *, by: Meter | None = None
) -> None:
    """Adds a gauge that is 1 or 0."""
    observe(name, description, lambda: [Observation(float(is_true()))], by=by)


def observe_connections(database: Database, *, by: Meter | None = None) -> None:
    """Adds the gauges of a process's connections to its database."""
    name, state = Attribute.DB_CLIENT_CONNECTION_POOL_NAME, Attribute.DB_CLIENT_CONNECTION_STATE

    def counted() -> Observations:
        return [
            Observation(count, {name: pool, state: key})
            for pool, states in database.connections().items()
            for key, count in states.items()
        ]

    (by or meter()).create_observable_up_down_counter(
        Metric.DB_CLIENT_CONNECTION_COUNT,
        [lambda _: counted()],
        unit="{connection}",
        description="Connections of this process to the database, by pool and state",
    )
    observe(
        Metric.DB_CLIENT_CONNECTION_MAX,
        "Connections that this process may have to the database, by pool",
        lambda: [
            Observation(most, {name: pool}) for pool, most in database.max_connections().items()
        ],
        unit="{connection}",
        by=by,
    )


def observe_circuits(read: Callable[[], Sequence[Condition]], *, by: Meter | None = None) -> None:
    """Adds the gauge of open circuits."""

    def counted() -> Observations:
        found = Counter((LABELS.of(one.model), one.fault.value) for one in read())
        return [
            Observation(count, {Attribute.MODEL: model, Attribute.FAULT: fault})
            for (model, fault), count in found.items()
        ]

    description = "Deployments of models that receive nothing but probes"
    observe(Metric.LLM_CIRCUITS_OPEN, description, counted, by=by)


class DeploymentGauges:
    """Measures a deployment again and again; what could not be measured has no figures."""

    def __init__(
        self, database: Database, *, dead_after_seconds: float, by: Meter | None = None
    ) -> None:
        """`dead_after_seconds`: of silence, after which a worker counts as dead."""
        self._database = database
        self._dead_after_seconds = dead_after_seconds
        self._lag: Lag | None = None
        self._queue: QueueFacts | None = None
        for (name, unit, label, description), fields in _OF_LAG.items():
            read = partial(self._figures, lambda: self._lag, label, fields)
            observe(name, description, read, unit=unit, by=by)
        for (name, unit, label, description), fields in _OF_QUEUE.items():
            read = partial(self._figures, lambda: self._queue, label, fields)
            observe(name, description, read, unit=unit, by=by)

    async def run(self) -> None:
        """Measures until it is cancelled."""
        while True:
            begun = time.monotonic()
            await self.measure()
            took = time.monotonic() - begun
            await asyncio.sleep(max(MEASURE_SECONDS, PAUSE_FACTOR * took))

    async def measure(self) -> None:
        """Measures once."""
        try:
            self._lag = await measures.read_lag(self._database)
        except StorageError as error:
            # Unknown is not 0, and not what it was.
            self._lag = None
            _log.warning("lag not measured", cause=str(error))
        try:
            self._queue = await queue.read_facts(
                self._database, dead_after_seconds=self._dead_after_seconds
            )
        except StorageError as error:
            self._queue = None
            _log.warning("queue not measured", cause=str(error))

    @staticmethod
    def _figures(
        measured: Callable[[], Lag | QueueFacts | None], label: str, fields: Mapping[str, str]
    ) -> Observations:
        facts = measured()
        if facts is None:
            return []
        return [Observation(getattr(facts, field), {label: key}) for key, field in fields.items()]
