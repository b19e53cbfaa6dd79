"""What this process has measured, as Prometheus reads it.

Text, or where it is asked for OpenMetrics with exemplars, which OpenTelemetry's own exporter
does not pass on (docs/decisions/0066-metrics-are-served-with-exemplars.md).
"""

from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import Any

from opentelemetry.sdk.metrics.export import Histogram, InMemoryMetricReader, MetricReader, Sum
from opentelemetry.sdk.metrics.export import Metric as Measured
from opentelemetry.trace import format_span_id, format_trace_id
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar
from prometheus_client.utils import floatToGoString

#: How units are written; those in braces, such as {call}, are not.
_UNITS = {"s": "seconds", "By": "bytes", "usd": "usd"}
_INFO = "target"


class Exposition(Collector):
    """Renders the metrics of a process."""

    def __init__(self) -> None:
        self._reader = InMemoryMetricReader()
        self._registry = CollectorRegistry()
        self._registry.register(self)
        # CPU, memory and files of the process, by the names that Prometheus's clients share.
        ProcessCollector(registry=self._registry)

    @property
    def reader(self) -> MetricReader:
        """What a provider of meters is to be given."""
        return self._reader

    def render(self, is_open: bool) -> tuple[bytes, str]:
        """Returns the metrics, as OpenMetrics if it `is_open`, and their content type.

        It takes a while: for a thread of its own.
        """
        if is_open:
            said = openmetrics.generate_latest(self._registry)  # type: ignore[no-untyped-call]
            return said, openmetrics.CONTENT_TYPE_LATEST
        return generate_latest(self._registry), CONTENT_TYPE_PLAIN_0_0_4

    def describe(self) -> Iterable[Metric]:
        """Returns nothing: the metrics are not known in advance."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Returns every metric as it is now."""
        data = self._reader.get_metrics_data()
        families: dict[str, Metric] = {}
        for resource in data.resource_metrics if data is not None else ():
            info = Metric(_INFO, "What is measured", "info")
            attributes = resource.resource.attributes.items()
            info.add_sample(f"{_INFO}_info", {_label(key): str(one) for key, one in attributes}, 1)
            families[_INFO] = info
            for scope in resource.scope_metrics:
                for measured in scope.metrics:
                    family = _family(measured)
                    # Several scopes may have instruments of one name.
                    _add(families.setdefault(family.name, family), measured)
        yield from families.values()


def _family(measured: Measured) -> Metric:
    data = measured.data
    kind = "gauge"
    if isinstance(data, Histogram):
        kind = "histogram"
    elif isinstance(data, Sum) and data.is_monotonic:
        kind = "counter"
    unit = _UNITS.get(measured.unit or "", "")
    return Metric(_label(measured.name), measured.description or "", kind, unit)


def _add(family: Metric, measured: Measured) -> None:
    # The kinds of points have no common type that says what they have.
    point: Any
    for point in measured.data.data_points:
        labels = {_label(key): str(one) for key, one in (point.attributes or {}).items()}
        if family.type == "histogram":
            _add_histogram(family, labels, point)
        elif family.type == "counter":
            exemplar = next(map(_exemplar, _traced(point)), None)
            family.add_sample(f"{family.name}_total", labels, point.value, exemplar=exemplar)
        else:
            family.add_sample(family.name, labels, point.value)


def _add_histogram(family: Metric, labels: dict[str, str], point: Any) -> None:
    bounds = [*point.explicit_bounds, float("inf")]
    # The newest of each bucket.
    exemplars = {
        next(bound for bound in bounds if one.value <= bound): _exemplar(one)
        for one in sorted(_traced(point), key=lambda one: one.time_unix_nano)
    }
    for bound, count in zip(bounds, accumulate(point.bucket_counts), strict=True):
        own = {**labels, "le": floatToGoString(bound)}  # type: ignore[no-untyped-call]
        family.add_sample(f"{family.name}_bucket", own, count, exemplar=exemplars.get(bound))
    family.add_sample(f"{family.name}_count", labels, point.count)
    family.add_sample(f"{family.name}_sum", labels, point.sum)


def _traced(point: Any) -> Iterator[Any]:
    return (one for one in point.exemplars if one.trace_id)


def _exemplar(found: Any) -> Exemplar:
    spans = {
        "trace_id": format_trace_id(found.trace_id),
        "span_id": format_span_id(found.span_id),
    }
    return Exemplar(spans, found.value, found.time_unix_nano / 1e9)


def _label(name: str) -> str:
    return name.replace(".", "_").replace("-", "_")
