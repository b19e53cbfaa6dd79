"""How the client reads what gRPC reports."""

import grpc
from google.rpc import status_pb2
from grpc import aio

from palimpsest import ResourceExhausted
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
