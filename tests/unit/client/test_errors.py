"""How the client reads what gRPC reports."""

import grpc
import pytest
from google.rpc import status_pb2
from grpc import aio

from palimpsest import (
    Aborted,
    Cancelled,
    ConnectionFailed,
    DeadlineExceeded,
    PalimpsestError,
    ResourceExhausted,
    Unavailable,
)
from palimpsest._errors import from_rpc


def test_details_of_another_status_do_not_hide_the_one_that_counts() -> None:
    other = status_pb2.Status(code=3, message="the path is no path")
    cut_short = aio.AioRpcError(
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        aio.Metadata(),
        aio.Metadata(("grpc-status-details-bin", other.SerializeToString())),
        "received metadata size exceeds the limit",
    )
    known = from_rpc(cut_short, "127.0.0.1:1")
    assert isinstance(known, ResourceExhausted)
    assert str(known) == "received metadata size exceeds the limit"


@pytest.mark.parametrize(
    ("error", "is_retryable"),
    [
        (Unavailable("away"), True),
        (ConnectionFailed("away"), True),
        (ResourceExhausted("full", reason="TOO_MANY_ASKS", retry_seconds=0.5), True),
        (ResourceExhausted("spent", reason="BUDGET_EXHAUSTED"), False),
        (Aborted("fenced", reason="PRODUCER_FENCED"), False),
        (DeadlineExceeded("late"), False),
        (Cancelled("by a client"), False),
        (PalimpsestError("closed"), False),
    ],
    ids=lambda one: type(one).__name__,
)
def test_what_did_nothing_is_retryable(error: PalimpsestError, is_retryable: bool) -> None:
    """As errors.proto says of UNAVAILABLE, and of RESOURCE_EXHAUSTED with RetryInfo."""
    assert error.retryable is is_retryable
