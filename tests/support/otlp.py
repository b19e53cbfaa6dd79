"""A substitute for a collector: takes spans by OTLP over gRPC, and shows what came as one trace."""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

from tests.support.harness import eventually


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """A span as it came."""

    service: str
    name: str
    #: PRODUCER, CONSUMER …
    kind: str
    trace_id: str
    span_id: str
    #: Empty of a root.
    parent_id: str
    #: Trace and span of each.
    links: frozenset[tuple[str, str]]
    attributes: dict[str, Any]
    is_error: bool
    #: Names of its events.
    events: tuple[str, ...]
    start_ns: int
    end_ns: int

    @property
    def link(self) -> tuple[str, str]:
        """What others link to."""
        return self.trace_id, self.span_id


@dataclass
class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """What was exported so far."""

    url: str = ""
    _spans: list[Span] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def Export(self, request: Any, context: object) -> Any:
        """Takes spans."""
        with self._lock:
            for resource in request.resource_spans:
                known = _values(resource.resource.attributes)
                for scope in resource.scope_spans:
                    self._spans += [_span(known["service.name"], one) for one in scope.spans]
        return trace_service_pb2.ExportTraceServiceResponse()

    @property
    def environment(self) -> dict[str, str]:
        """What has a process of ours export to here, soon."""
        return {
            "OTEL_EXPORTER_OTLP_ENDPOINT": self.url,
            "OTEL_EXPORTER_OTLP_INSECURE": "true",
            "OTEL_EXPORTER_OTLP_TIMEOUT": "60",
            "OTEL_METRICS_EXPORTER": "none",
            "OTEL_BSP_SCHEDULE_DELAY": "100",
        }

    @property
    def spans(self) -> Sequence[Span]:
        """All that came, in the order of their beginnings."""
        with self._lock:
            return sorted(self._spans, key=lambda one: one.start_ns)

    def named(self, name: str, trace_id: str | None = None) -> list[Span]:
        """Returns those of a name, of one trace or of any."""
        return [one for one in self.spans if one.name == name and trace_id in (None, one.trace_id)]

    def wait(self, what: str, there: Callable[["Collector"], object]) -> None:
        """Waits until something of it has come."""
        eventually(what, lambda: bool(there(self)))


def _span(service: str, one: Any) -> Span:
    return Span(
        service=service,
        name=one.name,
        kind=one.SpanKind.Name(one.kind).removeprefix("SPAN_KIND_"),
        trace_id=one.trace_id.hex(),
        span_id=one.span_id.hex(),
        parent_id=one.parent_span_id.hex(),
        links=frozenset((link.trace_id.hex(), link.span_id.hex()) for link in one.links),
        attributes=_values(one.attributes),
        is_error=one.status.code == one.status.STATUS_CODE_ERROR,
        events=tuple(event.name for event in one.events),
        start_ns=one.start_time_unix_nano,
        end_ns=one.end_time_unix_nano,
    )


def _values(attributes: Any) -> dict[str, Any]:
    return {one.key: _value(one.value) for one in attributes}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(one) for one in value.array_value.values]
    return getattr(value, kind)


@contextmanager
def collector() -> Iterator[Collector]:
    """Yields a collector on a free port of this machine."""
    server = grpc.server(futures.ThreadPoolExecutor(4))
    taking = Collector()
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(taking, server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    taking.url = f"http://127.0.0.1:{port}"
    server.start()
    try:
        yield taking
    finally:
        server.stop(0)


def rendered(spans: Sequence[Span], *, without: Sequence[str] = ()) -> str:
    """Returns the spans of one trace as an indented text, without those of some names."""
    shown = [one for one in spans if one.name not in without]
    first = min(one.start_ns for one in shown)
    ids = {one.span_id for one in shown}

    def lines(parent: Span | None, depth: int) -> Iterator[str]:
        for one in shown:
            is_root = one.parent_id not in ids
            if is_root if parent is None else one.parent_id == parent.span_id:
                at = (one.start_ns - first) / 1e6
                took = (one.end_ns - one.start_ns) / 1e6
                name = f"{'  ' * depth}{one.name}"
                linked = f"  → {len(one.links)} linked" if one.links else ""
                yield (
                    f"{at:8.1f} {took:8.1f}  {name:<46} {one.kind.lower():<9} {one.service}{linked}"
                ).rstrip()
                yield from lines(one, depth + 1)

    return "\n".join(["at (ms) took (ms) span", *lines(None, 0)])
