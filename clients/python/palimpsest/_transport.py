"""Targets, deadlines, retries and trace headers, for both faces of the client."""

import math
import os
import random
import time
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import grpc

from palimpsest._credentials import Access
from palimpsest._errors import (
    ConnectionFailed,
    Ended,
    PalimpsestError,
    ResourceExhausted,
    Unavailable,
    from_rpc,
)

try:
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError:
    _w3c = None
else:
    #: W3C Trace Context, and no baggage: that may hold anything. Only programs that trace
    #: have the package; the client does not need it otherwise.
    _w3c = TraceContextTextMapPropagator()

#: The distribution that has this package.
DISTRIBUTION = "palimpsest-sdk"


def _installed() -> str:
    try:
        return version(DISTRIBUTION)
    except PackageNotFoundError:
        # Imported from a folder of sources.
        return "0"


#: As it is installed; "0" where it is not.
VERSION = _installed()
#: Where `palimpsest up` listens.
DEFAULT_TARGET = "127.0.0.1:50051"
DEFAULT_PORT = 50051
#: The variable that names another target.
TARGET_VARIABLE = "PALIMPSEST_ADDRESS"
#: How long to try a service that was never reached. After the first contact a call, a producer
#: or a watch tries as long as it may take: the service may be restarting.
REACH_SECONDS = 2.5
#: The timeout of a call, if neither it nor the client has one.
CALL_SECONDS = 30.0
#: As CALL_SECONDS, of a question, of an append, which is stored once however often it is
#: tried, and of a schema, which may take several replies of a model.
ASK_SECONDS = 60.0
APPEND_SECONDS = 60.0
SCHEMA_SECONDS = 120.0
#: The longest timeout of a call. gRPC treats far longer ones, such as infinity, as passed.
MAX_CALL_SECONDS = 365 * 86_400.0
#: Bytes of a message to the service, which accepts no larger one.
MAX_SENT_BYTES = 4 * 1024 * 1024
#: Wait before the second try of a call, which doubles with each further one, and the longest:
#: a longer wait would end long after the service is back.
BACKOFF_SECONDS = (0.1, 5.0)
#: As BACKOFF_SECONDS, of streams.
STREAM_BACKOFF_SECONDS = (0.05, 5.0)
#: Given to a reply of the service's own deadline to arrive before ours.
SLACK_SECONDS = 0.5

OPTIONS = (
    ("grpc.max_receive_message_length", 8 * 1024 * 1024),
    ("grpc.max_send_message_length", MAX_SENT_BYTES),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 5_000),
    # How long gRPC waits for an address that does not answer at all; 20 s by default.
    ("grpc.min_reconnect_backoff_ms", 5_000),
    # Precedes gRPC's own name, so that operators see which clients are in use.
    ("grpc.primary_user_agent", f"{DISTRIBUTION}/{VERSION}"),
)


def parse_target(target: str | None, *, has_credentials: bool = False) -> tuple[str, bool]:
    """Returns the address in gRPC's form, and whether it is reached by TLS.

    `target` is HOST:PORT, grpc://HOST:PORT, grpcs://HOST:PORT or unix:PATH; None: that of
    PALIMPSEST_ADDRESS, else where `palimpsest up` listens. grpcs means TLS, and so do credentials
    of gRPC's. Raises ValueError.
    """
    given = (target or os.environ.get(TARGET_VARIABLE) or DEFAULT_TARGET).strip()
    scheme, separator, address = given.partition("://")
    if not separator or scheme == "unix":
        address = given if given.startswith("unix:") else _with_port(given)
        return address, has_credentials
    if scheme not in ("grpc", "grpcs"):
        raise ValueError(
            f"{given!r} is no address of the service: give HOST:PORT, grpc://HOST:PORT,"
            " grpcs://HOST:PORT (TLS) or unix:PATH"
        )
    if scheme == "grpc" and has_credentials:
        raise ValueError(f"{given!r} is without TLS: with credentials it is grpcs://HOST:PORT")
    address = address.rstrip("/")
    if "/" in address or not address:
        raise ValueError(f"{given!r} is no address of the service: give {scheme}://HOST:PORT")
    return _with_port(address), scheme == "grpcs"


def _with_port(address: str) -> str:
    host, separator, _ = address.rpartition(":")
    # Colons without brackets are those of an IPv6 address.
    named = bool(separator) and (":" not in host or host.endswith("]"))
    if not named and ":" in address and not address.startswith("["):
        address = f"[{address}]"
    return address if named else f"{address}:{DEFAULT_PORT}"


def deadline_of(timeout: float | None, default: float) -> float:
    """Returns the timeout of a call in seconds. Raises ValueError for what is no number."""
    seconds = default if timeout is None else timeout
    if math.isnan(seconds):
        raise ValueError("a timeout must be a number of seconds, not nan")
    return min(seconds, MAX_CALL_SECONDS)


def left_seconds(until: float) -> float:
    """Returns the seconds until a time of the monotonic clock; 0 when it has passed."""
    return max(until - time.monotonic(), 0.0)


class Reach:
    """Whether the service at an address was ever reached, and how long to try it."""

    def __init__(self, address: str, seconds: float) -> None:
        self._address = address
        self._seconds = seconds
        #: Whether the service has ever replied.
        self.reached = False

    def failure(self, error: Ended) -> PalimpsestError:
        """Returns the client's error for one of gRPC's."""
        known = from_rpc(error, self._address)
        if not isinstance(known, ConnectionFailed):
            self.reached = True
        elif not self.reached:
            return ConnectionFailed(
                f"{known}; for a service that is starting, connect(reach_seconds=60) waits longer"
                f" than {self._seconds:g} s"
            )
        return known

    def try_seconds(self, seconds: float) -> float:
        """Returns how long to try what may take `seconds`: less before the first contact."""
        return seconds if self.reached else min(seconds, self._seconds)


class Backoff:
    """The pauses between the tries of a call."""

    def __init__(self, seconds: tuple[float, float]) -> None:
        self._first, self._longest = seconds
        self.restart()

    def restart(self) -> None:
        """Makes the next pause the shortest again."""
        self._wait = self._first

    def pause_seconds(self, error: PalimpsestError) -> float:
        """Returns how long to pause after an error: not less than the service asks.

        With jitter in any case, so that clients that were refused together do not return together.
        """
        jitter = random.uniform(0.5, 1.0)
        pause = self._wait * jitter
        self._wait = min(self._wait * 2, self._longest)
        return max(pause, (error.retry_seconds or 0.0) * (0.5 + jitter))


#: Refusals of a service that is full, which come before it has begun anything.
_UNBEGUN = frozenset({"TOO_MANY_CALLS", "TOO_MANY_ASKS", "TOO_MANY_PENDING"})


def is_unbegun(error: PalimpsestError) -> bool:
    """Returns whether certainly no work was done, so that any call may be repeated."""
    return error.reason in _UNBEGUN


def may_repeat(error: PalimpsestError, code: grpc.StatusCode) -> bool:
    """Returns whether a unary call that may run twice may be repeated."""
    full = isinstance(error, ResourceExhausted) and error.retry_seconds is not None
    # Cancelling by our own caller is no error of gRPC's: this is a server, or a proxy, that was
    # full or stopped. With a reason, the requested work itself was cancelled.
    broken_off = code is grpc.StatusCode.CANCELLED and not error.reason
    return full or broken_off or code is grpc.StatusCode.UNAVAILABLE


#: The client-side gRPC message of a call whose connection was lost.
_BROKEN = "Internal error from Core"


def may_pass(error: PalimpsestError, code: grpc.StatusCode) -> bool:
    """Returns whether a stream that ended with this error can be opened again."""
    if isinstance(error, Unavailable) or code is grpc.StatusCode.CANCELLED:
        return True
    if code is grpc.StatusCode.INTERNAL and str(error) == _BROKEN:
        return True
    return isinstance(error, ResourceExhausted) and error.retry_seconds is not None


def may_resume(error: PalimpsestError, code: grpc.StatusCode) -> bool:
    """Returns whether an answer can be resumed after a call that ended with this error."""
    if isinstance(error, ResourceExhausted):
        # The server is full, or the answer's budget is used up.
        return is_unbegun(error)
    # A server that stops cancels its calls without a reason.
    stopped = code is grpc.StatusCode.CANCELLED and not error.reason
    return stopped or isinstance(error, Unavailable)


#: The trace's id within a `traceparent`.
_TRACE_ID = slice(3, 35)


def headers(access: Access | None) -> dict[str, Any]:
    """Returns the argument of a call with its token, and the current span, where there are any."""
    token = () if access is None else access.headers()
    found = (*token, *_injected().items())
    return {"metadata": found} if found else {}


def traceparent() -> str:
    """Returns the current span as one header; empty without one."""
    return _injected().get("traceparent", "")


def trace_of(traceparent: str) -> str:
    """Returns the trace that a header names if it is sampled; else empty."""
    is_sampled = traceparent.endswith(("1", "3", "5", "7", "9", "b", "d", "f"))
    return traceparent[_TRACE_ID] if is_sampled else ""


def _injected() -> dict[str, str]:
    headers: dict[str, str] = {}
    if _w3c is not None:
        _w3c.inject(headers)
    return headers
