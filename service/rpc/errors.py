"""The one table from our errors to gRPC codes, and the status they become."""

from typing import Any

import grpc
from google.protobuf import any_pb2
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2, status_pb2

from palimpsest.v1 import errors_pb2
from service.domain.values import errors
from service.domain.values.errors import PalimpsestError
from service.domain.values.reasons import Reason

#: ErrorInfo.domain of every refusal.
DOMAIN = "palimpsest"

#: From the tree of service/domain/values/errors.py; the first that fits counts.
CODES: tuple[tuple[type[errors.PalimpsestError], grpc.StatusCode], ...] = (
    (errors.InvalidInput, grpc.StatusCode.INVALID_ARGUMENT),
    (errors.NotFound, grpc.StatusCode.NOT_FOUND),
    (errors.AlreadyExists, grpc.StatusCode.ALREADY_EXISTS),
    (errors.OutOfRange, grpc.StatusCode.OUT_OF_RANGE),
    (errors.Conflict, grpc.StatusCode.ABORTED),
    (errors.Exhausted, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (errors.FailedPrecondition, grpc.StatusCode.FAILED_PRECONDITION),
    (errors.DeadlineExceeded, grpc.StatusCode.DEADLINE_EXCEEDED),
    (errors.Cancelled, grpc.StatusCode.CANCELLED),
    (errors.Unauthenticated, grpc.StatusCode.UNAUTHENTICATED),
    (errors.PermissionDenied, grpc.StatusCode.PERMISSION_DENIED),
    (errors.Unavailable, grpc.StatusCode.UNAVAILABLE),
)

#: The key under which gRPC carries a google.rpc.Status.
_DETAILS_KEY = "grpc-status-details-bin"

#: Limits of a message and of a metadata value, in bytes of UTF-8. Both travel in the
#: trailers, of which gRPC takes 8 KiB. The message is in them two or three times, once with
#: three bytes for each byte that is not ASCII.
MAX_TEXT_BYTES = 1000

#: For ResourceInfo: the proto message that a reason is about, and its metadata key.
_RESOURCES = {
    Reason.OPERATION_NOT_FOUND: ("palimpsest.v1.Operation", "operation"),
    Reason.SESSION_NOT_FOUND: ("palimpsest.v1.Session", "session"),
    Reason.EXPORT_NOT_FOUND: ("palimpsest.v1.Session", "session"),
    Reason.SESSION_EXISTS: ("palimpsest.v1.Session", "session"),
    Reason.MEMORY_NOT_FOUND: ("palimpsest.v1.Memory", "memory"),
    Reason.MEMORY_EXISTS: ("palimpsest.v1.Memory", "memory"),
    Reason.ANSWER_NOT_FOUND: ("palimpsest.v1.Answer", "answer"),
    Reason.NODE_NOT_FOUND: ("palimpsest.v1.TreeNode", "node"),
}


def internal_error(incident: str) -> errors.PalimpsestError:
    """Returns the error that a client receives for a defect."""
    return errors.PalimpsestError(
        Reason.INTERNAL,
        f"internal error; incident {incident}: report it to the operator; the log has details",
        {"incident": incident},
    )


def shortened(error: errors.PalimpsestError) -> tuple[str, dict[str, str]]:
    """Returns message and metadata, cut to what fits the trailers."""
    metadata = {key: _shortened(value) for key, value in error.metadata.items()}
    return _shortened(error.message), metadata


def code_of(error: errors.PalimpsestError) -> grpc.StatusCode:
    """Returns the gRPC code of an error."""
    for kind, code in CODES:
        if isinstance(error, kind):
            return code
    return grpc.StatusCode.INTERNAL


def abort_arguments(
    error: errors.PalimpsestError,
) -> tuple[grpc.StatusCode, str, tuple[tuple[str, bytes], ...]]:
    """Returns code, message and trailing metadata, as `ServicerContext.abort` takes them."""
    code = code_of(error)
    message = _shortened(error.message)
    status = status_pb2.Status(code=code.value[0], message=message)
    for detail in _details(error, message):
        packed = any_pb2.Any()
        packed.Pack(detail)
        status.details.append(packed)
    return code, message, ((_DETAILS_KEY, status.SerializeToString()),)


def _shortened(text: str) -> str:
    encoded = text.encode(errors="backslashreplace")
    if len(encoded) <= MAX_TEXT_BYTES:
        return encoded.decode()
    # The beginning says where, the end what is wrong; what the client sent is in the middle.
    half = MAX_TEXT_BYTES // 2 - 3
    first, last = encoded[:half].decode(errors="ignore"), encoded[-half:].decode(errors="ignore")
    return f"{first} … {last}"


def _details(error: errors.PalimpsestError, message: str) -> list[Any]:
    _, metadata = shortened(error)
    details: list[Any] = [
        error_details_pb2.ErrorInfo(reason=error.reason.value, domain=DOMAIN, metadata=metadata)
    ]
    if isinstance(error, errors.InvalidInput) and error.field:
        violation = error_details_pb2.BadRequest.FieldViolation(
            field=error.field, description=message
        )
        details.append(error_details_pb2.BadRequest(field_violations=[violation]))
    if isinstance(error, errors.Exhausted | errors.Unavailable) and error.retry_seconds:
        delay = Duration()
        delay.FromMilliseconds(int(error.retry_seconds * 1000))
        details.append(error_details_pb2.RetryInfo(retry_delay=delay))
    if isinstance(error, errors.Exhausted):
        subject = error_details_pb2.QuotaFailure.Violation(
            subject=error.reason.value.lower(), description=message
        )
        details.append(error_details_pb2.QuotaFailure(violations=[subject]))
    if error.reason in _RESOURCES:
        kind, key = _RESOURCES[error.reason]
        details.append(
            error_details_pb2.ResourceInfo(
                resource_type=kind,
                resource_name=metadata.get(key, ""),
                description=message,
            )
        )
    return details


def error_status(error: PalimpsestError) -> errors_pb2.ErrorStatus:
    """Returns the error as a message, with what a call would end with."""
    message, metadata = shortened(error)
    name = f"ERROR_REASON_{error.reason.value}"
    known = name in errors_pb2.ErrorReason.keys()  # noqa: SIM118 - it is no dict
    return errors_pb2.ErrorStatus(
        code=code_of(error).value[0],
        reason=errors_pb2.ErrorReason.Value(name) if known else errors_pb2.ERROR_REASON_UNSPECIFIED,
        message=message,
        metadata=metadata,
    )
