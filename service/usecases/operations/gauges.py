"""Exports gauges of a deployment: what waits, what is behind and what is in use.

Each API server measures the whole deployment, so that no process has to be the only one: read
one server's figures, or the greatest. Gauges of a process are that process's own.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import structlog
from opentelemetry.metrics import CallbackOptions, Meter, Observation

from service.domain.calls.conditions import Condition
from service.llm.providers.labels import LABELS
from service.telemetry import meter
from service.telemetry.names import Attribute, Metric
from storage.engine.database import Database
from storage.engine.errors import StorageError
from storage.operations import measures
from storage.operations.measures import Lag

if TYPE_CHECKING:
    # Executors export gauges, too, and must not load what only workers need.
    from service.dispatch.queue import DispatchStatistics, QueueDispatcher

_log = structlog.get_logger("palimpsest.gauges")

#: How often a deployment is measured, in seconds …
MEASURE_SECONDS = 15.0
#: … and how many times as long as the last look took it waits at least: a look over very many
#: memories takes no more than a twentieth of one connection.
PAUSE_FACTOR = 19.0

_MEMORIES = "Memories that do not go on or are behind"
_LAG_CHUNKS = "Chunks that memories are behind"
_LAG_SECONDS = "Age of chunks that wait for memories"
_QUEUE_ITEMS = "Items that wait, and items in hand"
_QUEUE_SECONDS = "Age of items that wait"

Figures = Mapping[str, float]


def observe(
    name: str,
    description: str,
    label: str,
    read: Callable[[], Figures],
    *,
    unit: str = "",
    by: Meter | None = None,
) -> None:
    """Adds a gauge that reads its figures by their label each time that it is collected."""

    def observations(_: CallbackOptions) -> Iterable[Observation]:
        return [Observation(value, {label: key}) for key, value in read().items()]

    (by or meter()).create_observable_gauge(
        name, [observations], unit=unit, description=description
    )


def observe_connections(database: Database, *, by: Meter | None = None) -> None:
    """Adds the gauges of a process's connections to its database."""
    label = Attribute.DB_CLIENT_CONNECTION_STATE

    def counted(_: CallbackOptions) -> Iterable[Observation]:
        return [
            Observation(count, {Attribute.DB_CLIENT_CONNECTION_POOL_NAME: pool, label: state})
            for pool, states in database.connections().items()
            for state, count in states.items()
        ]

    (by or meter()).create_observable_up_down_counter(
        Metric.DB_CLIENT_CONNECTION_COUNT,
        [counted],
        unit="{connection}",
        description="Connections of this process to the database, by pool and state",
    )
    observe(
        Metric.DB_CLIENT_CONNECTION_MAX,
        "Connections that this process may have to the database, by pool",
        Attribute.DB_CLIENT_CONNECTION_POOL_NAME,
        database.max_connections,
        unit="{connection}",
        by=by,
    )


def observe_one(
    name: str, description: str, read: Callable[[], float | None], *, by: Meter | None = None
) -> None:
    """Adds a gauge of one figure, which is missing while `read` gives None."""

    def observations(_: CallbackOptions) -> Iterable[Observation]:
        value = read()
        return [] if value is None else [Observation(value)]

    (by or meter()).create_observable_gauge(name, [observations], description=description)


def observe_ready(is_ready: Callable[[], bool]) -> None:
    """Adds the gauge of whether a process can work."""
    observe_one(Metric.READY, "Whether the process can do its work", lambda: float(is_ready()))


def observe_executor(is_reachable: Callable[[], bool], *, by: Meter | None = None) -> None:
    """Adds the gauge of whether a worker reaches the process that makes its calls."""
    observe_one(
        Metric.EXECUTOR_REACHABLE,
        "Whether the process that makes model calls is reached",
        lambda: float(is_reachable()),
        by=by,
    )


def observe_prefix_cache(is_reachable: Callable[[], bool], *, by: Meter | None = None) -> None:
    """Adds the gauge of whether Redis is there."""
    observe_one(
        Metric.PREFIX_CACHE_REACHABLE,
        "Whether Redis answered when it was last asked",
        lambda: float(is_reachable()),
        by=by,
    )


def observe_circuits(read: Callable[[], Sequence[Condition]], *, by: Meter | None = None) -> None:
    """Adds the gauge of open circuits."""

    def counted(_: CallbackOptions) -> Iterable[Observation]:
        found = Counter((LABELS.of(one.model), one.fault.value) for one in read())
        return [
            Observation(count, {Attribute.MODEL: model, Attribute.FAULT: fault})
            for (model, fault), count in found.items()
        ]

    (by or meter()).create_observable_gauge(
        Metric.LLM_CIRCUITS_OPEN,
        [counted],
        description="Places of models that are left alone but for probes",
    )


class DeploymentGauges:
    """Measures a deployment again and again; what could not be measured has no figures."""

    def __init__(
        self, database: Database, dispatcher: "QueueDispatcher", *, by: Meter | None = None
    ) -> None:
        self._database = database
        self._dispatcher = dispatcher
        self._lag: Lag | None = None
        self._queue: DispatchStatistics | None = None
        state, statistic = Attribute.STATE, Attribute.STATISTIC
        for name, unit, label, read, description in (
            (Metric.MEMORIES, "{memory}", state, self._memories, _MEMORIES),
            (Metric.LAG_CHUNKS, "{chunk}", statistic, self._lag_chunks, _LAG_CHUNKS),
            (Metric.LAG_SECONDS, "s", statistic, self._lag_seconds, _LAG_SECONDS),
            (Metric.QUEUE_ITEMS, "{item}", state, self._queue_items, _QUEUE_ITEMS),
            (Metric.QUEUE_SECONDS, "s", statistic, self._queue_seconds, _QUEUE_SECONDS),
        ):
            observe(name, description, label, read, unit=unit, by=by)

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
            self._queue = await self._dispatcher.statistics()
        except ConnectionError as error:
            self._queue = None
            _log.warning("queue not measured", cause=str(error))

    def _memories(self) -> Figures:
        lag = self._lag
        if lag is None:
            return {}
        return {"stalled": lag.stalled, "held": lag.held, "behind": lag.behind}

    def _lag_chunks(self) -> Figures:
        lag = self._lag
        if lag is None:
            return {}
        return {"sum": lag.sum_chunks, "p95": lag.p95_chunks, "max": lag.max_chunks}

    def _lag_seconds(self) -> Figures:
        lag = self._lag
        return {} if lag is None else {"p95": lag.p95_seconds, "max": lag.max_seconds}

    def _queue_items(self) -> Figures:
        queue = self._queue
        return {} if queue is None else {"queued": queue.queued, "running": queue.running}

    def _queue_seconds(self) -> Figures:
        return {} if self._queue is None else {"max": self._queue.oldest_queued_seconds}
