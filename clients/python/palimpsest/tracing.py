"""Traces: the span under way in the caller's process is named to the service.

This works only where the package `opentelemetry-api` is installed, as it is in programs that
trace. The client does not need it otherwise.
"""

from typing import Any

try:
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError:
    _w3c = None
else:
    #: W3C Trace Context, and no baggage: that may hold anything.
    _w3c = TraceContextTextMapPropagator()

#: Where the trace's id stands in a `traceparent`.
_TRACE_ID = slice(3, 35)


def options() -> dict[str, Any]:
    """Returns the argument of a call that names the span under way; none without one."""
    headers = _headers()
    return {"metadata": tuple(headers.items())} if headers else {}


def traceparent() -> str:
    """Returns the span under way, as one header names it; empty without one."""
    return _headers().get("traceparent", "")


def trace_of(traceparent: str) -> str:
    """Returns the trace that a header names if it is sampled; empty: none that anybody looks at."""
    is_sampled = traceparent.endswith(("1", "3", "5", "7", "9", "b", "d", "f"))
    return traceparent[_TRACE_ID] if is_sampled else ""


def _headers() -> dict[str, str]:
    headers: dict[str, str] = {}
    if _w3c is not None:
        _w3c.inject(headers)
    return headers
