"""Every error that the client raises. `str(error)` is one clear line.

PalimpsestError
├── InvalidArgument, NotFound, AlreadyExists, OutOfRange, Aborted,
│   ResourceExhausted, FailedPrecondition, DeadlineExceeded, Cancelled, Unavailable,
│   Unauthenticated, PermissionDenied
│                        the service refused, with a reason
├── ConnectionFailed     the service cannot be reached
└── ProducerClosed       a producer was used after it was closed, or had ended with an error
"""

from collections.abc import Mapping
from typing import Any, Protocol, TypeVar

import grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status


class PalimpsestError(Exception):
    """The base of all errors.

    `reason` is an ErrorReason of errors.proto without its prefix ("" when the service
    gave none), `metadata` the values that the reason's comment names, `fields` the
    request's fields that are wrong with what is wrong, `retry_seconds` when to retry.
    """

    def __init__(
        self,
        message: str,
        *,
        reason: str = "",
        metadata: Mapping[str, str] | None = None,
        fields: Mapping[str, str] | None = None,
        retry_seconds: float | None = None,
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.metadata = dict(metadata or {})
        self.fields = dict(fields or {})
        self.retry_seconds = retry_seconds

    @property
    def retryable(self) -> bool:
        """Whether nothing was done and the same request may succeed later.

        So it is of Unavailable, and of ResourceExhausted with `retry_seconds`. The client has
        repeated the call until its timeout, unless it writes without a `request_id`.
        """
        return False


class InvalidArgument(PalimpsestError):
    """The request is invalid."""


class NotFound(PalimpsestError):
    """The resource does not exist."""


class AlreadyExists(PalimpsestError):
    """The resource exists already."""


class OutOfRange(PalimpsestError):
    """A number is outside of the existing range."""


class Aborted(PalimpsestError):
    """Another client was first."""


class ResourceExhausted(PalimpsestError):
    """A limit is reached."""

    @property
    def retryable(self) -> bool:
        """Whether the limit is one that passes: the service says when to retry."""
        return self.retry_seconds is not None


class FailedPrecondition(PalimpsestError):
    """The state of the resource forbids the call."""


class DeadlineExceeded(PalimpsestError):
    """The deadline has passed; `metadata` has the progress."""


class Cancelled(PalimpsestError):
    """A client has cancelled the work."""


class Unavailable(PalimpsestError):
    """The service cannot process the call now; retry."""

    @property
    def retryable(self) -> bool:
        """True: it may pass."""
        return True


class Unauthenticated(PalimpsestError):
    """The service needs a valid token or certificate: `connect(token=…)`."""


class PermissionDenied(PalimpsestError):
    """The token or certificate does not allow the call."""


class ConnectionFailed(Unavailable):
    """The service cannot be reached."""


class ProducerClosed(PalimpsestError):
    """A producer was used after it was closed, or had ended with an error that was raised."""


Error = TypeVar("Error", bound=PalimpsestError)

_CLASSES: dict[grpc.StatusCode, type[PalimpsestError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidArgument,
    grpc.StatusCode.NOT_FOUND: NotFound,
    grpc.StatusCode.ALREADY_EXISTS: AlreadyExists,
    grpc.StatusCode.OUT_OF_RANGE: OutOfRange,
    grpc.StatusCode.ABORTED: Aborted,
    grpc.StatusCode.RESOURCE_EXHAUSTED: ResourceExhausted,
    grpc.StatusCode.FAILED_PRECONDITION: FailedPrecondition,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceeded,
    grpc.StatusCode.CANCELLED: Cancelled,
    grpc.StatusCode.UNAVAILABLE: Unavailable,
    grpc.StatusCode.UNAUTHENTICATED: Unauthenticated,
    grpc.StatusCode.PERMISSION_DENIED: PermissionDenied,
}
_BY_NUMBER = {code.value[0]: kind for code, kind in _CLASSES.items()}


#: What gRPC says of a connection that was made and then refused, and what to do.
_HANDSHAKES = (
    (
        "Hostname Verification Check failed",
        "shows a certificate that is for another name: connect to a name that it has",
    ),
    ("certificate has expired", "shows a certificate that has expired: its operator renews it"),
    (
        "CERTIFICATE_VERIFY_FAILED",
        "shows a certificate of none of the trusted roots: name its root by ca_file"
        " (PALIMPSEST_CA_FILE)",
    ),
    ("WRONG_VERSION_NUMBER", "does not use TLS: connect to grpc://HOST:PORT, on this machine only"),
    (
        "Socket closed",
        "closed the connection: it may be stopping, may require TLS (grpcs://HOST:PORT), or a"
        " certificate of the client (PALIMPSEST_CERTIFICATE_FILE, PALIMPSEST_KEY_FILE)",
    ),
)


class Ended(Protocol):
    """A call that gRPC ended with an error, awaited or blocking."""

    def code(self) -> grpc.StatusCode:
        """Returns the status."""

    def details(self) -> str | None:
        """Returns the message of the status."""

    def trailing_metadata(self) -> Any:
        """Returns the trailing metadata of the service."""


def reworded(error: Error, message: str, **metadata: str) -> Error:
    """Returns the same error with another message and more metadata."""
    return type(error)(
        message,
        reason=error.reason,
        metadata={**error.metadata, **metadata},
        fields=error.fields,
        retry_seconds=error.retry_seconds,
    )


def from_parts(
    code: int, message: str, reason: str, metadata: Mapping[str, str]
) -> PalimpsestError:
    """Returns the client's error for a refusal within a message; `code` is gRPC's number."""
    kind = _BY_NUMBER.get(code, PalimpsestError)
    return kind(message, reason=reason, metadata=metadata)


def from_rpc(error: Ended, address: str) -> PalimpsestError:
    """Returns the client's error for one of gRPC's."""
    try:
        status = rpc_status.from_call(error)
    except ValueError:
        # gRPC itself, or a proxy, ended the call and left the details of another error.
        status = None
    if status is None:
        return _without_details(error, address)
    kind = _CLASSES.get(error.code(), PalimpsestError)
    known = kind(status.message)
    for packed in status.details:
        _read_detail(known, packed)
    return known


def _read_detail(known: PalimpsestError, packed: object) -> None:
    info = error_details_pb2.ErrorInfo()
    bad = error_details_pb2.BadRequest()
    retry = error_details_pb2.RetryInfo()
    if packed.Unpack(info):  # type: ignore[attr-defined]
        known.reason = info.reason
        known.metadata = dict(info.metadata)
    elif packed.Unpack(bad):  # type: ignore[attr-defined]
        known.fields = {one.field: one.description for one in bad.field_violations}
    elif packed.Unpack(retry):  # type: ignore[attr-defined]
        known.retry_seconds = retry.retry_delay.ToMilliseconds() / 1000


def _without_details(error: Ended, address: str) -> PalimpsestError:
    code = error.code()
    if code is grpc.StatusCode.UNAVAILABLE:
        said = error.details() or ""
        for sign, message in _HANDSHAKES:
            if said.startswith("failed to connect") and sign in said:
                return ConnectionFailed(f"{address} {message}")
        return ConnectionFailed(
            f"cannot reach Palimpsest at {address}; start it with `palimpsest up`, or name"
            " the address where it listens (PALIMPSEST_ADDRESS)"
        )
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return DeadlineExceeded(f"no reply from {address} in time")
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return PalimpsestError(
            f"the service at {address} has no such method: it is older than this client, or it is"
            " no Palimpsest"
        )
    kind = _CLASSES.get(code, PalimpsestError)
    return kind(error.details() or f"the call ended with {code.name}")
