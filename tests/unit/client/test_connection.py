"""What may be tried again when a stream ends."""

import grpc
import pytest
from grpc import aio

from palimpsest.connection import may_pass
from palimpsest.errors import from_rpc


@pytest.mark.parametrize(
    ("code", "details", "passes"),
    [
        (grpc.StatusCode.UNAVAILABLE, "failed to connect", True),
        (grpc.StatusCode.CANCELLED, "", True),
        # gRPC's own word for a connection that broke under a call.
        (grpc.StatusCode.INTERNAL, "Internal error from Core", True),
        (grpc.StatusCode.INTERNAL, "this is a defect of the service", False),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "too much", False),
    ],
)
def test_what_may_pass(code: grpc.StatusCode, details: str, passes: bool) -> None:
    error = aio.AioRpcError(code, aio.Metadata(), aio.Metadata(), details=details)
    assert may_pass(from_rpc(error, "127.0.0.1:1"), code) is passes
