"""Errors as data."""

from palimpsest.v1 import errors_pb2
from service.domain.values.errors import PalimpsestError
from service.rpc.errors import code_of, shortened


def error_status(error: PalimpsestError) -> errors_pb2.ErrorStatus:
    """Returns what a call would end with."""
    message, metadata = shortened(error)
    name = f"ERROR_REASON_{error.reason.value}"
    known = name in errors_pb2.ErrorReason.keys()  # noqa: SIM118 - it is no dict
    return errors_pb2.ErrorStatus(
        code=code_of(error).value[0],
        reason=errors_pb2.ErrorReason.Value(name) if known else errors_pb2.ERROR_REASON_UNSPECIFIED,
        message=message,
        metadata=metadata,
    )
