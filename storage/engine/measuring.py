"""Measures and traces transactions."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry import metrics, trace
from opentelemetry.trace import SpanKind, StatusCode

from service.telemetry.names import Attribute, Metric, SpanName
from storage.engine.errors import StorageError

_SECONDS = metrics.get_meter("palimpsest").create_histogram(
    Metric.DB_CLIENT_OPERATION_DURATION,
    unit="s",
    description="Duration of transactions, with the wait for their connection",
    explicit_bucket_boundaries_advisory=(
        *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
        *(1, 2.5, 5, 10, 45),
    ),
)


def operation_of(name: str) -> str:
    """Returns the name of a transaction in metrics: the part before the dot."""
    return name.partition(".")[0]


@contextmanager
def spanned(name: str) -> Iterator[None]:
    """Opens a span within a sampled trace; a transaction begins no trace of its own.

    Only errors of the database fail it, and it has none of their text, which may be users'.
    """
    if not trace.get_current_span().get_span_context().trace_flags.sampled:
        yield
        return
    operation = operation_of(name)
    called = f"{SpanName.TRANSACTION} {operation}"
    with trace.get_tracer("palimpsest").start_as_current_span(
        called,
        kind=SpanKind.CLIENT,
        attributes={Attribute.DB_SYSTEM_NAME: "postgresql", Attribute.DB_OPERATION_NAME: operation},
        record_exception=False,
        set_status_on_exception=False,
    ) as span:
        try:
            yield
        except StorageError as error:
            span.set_status(StatusCode.ERROR)
            span.set_attribute(Attribute.ERROR_TYPE, type(error).__name__)
            raise


class Timed:
    """Records how long a transaction took, and the database error that ended it, if any."""

    __slots__ = ("_name", "_start")

    def __init__(self, name: str) -> None:
        self._name = operation_of(name)

    def __enter__(self) -> None:
        self._start = time.perf_counter()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        known = {Attribute.DB_SYSTEM_NAME: "postgresql", Attribute.DB_OPERATION_NAME: self._name}
        if kind is not None and issubclass(kind, StorageError):
            known[Attribute.ERROR_TYPE] = kind.__name__
        _SECONDS.record(time.perf_counter() - self._start, known)
