"""What may be tried again when a stream ends, and what a connection says of itself."""

from importlib.metadata import version

import grpc
import pytest
from grpc import aio

import palimpsest
from palimpsest._async._connection import Connection
from palimpsest._errors import from_rpc
from palimpsest._transport import may_pass
from palimpsest.v1 import session_service_pb2
from tests.unit.client.server import add, serving


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


async def test_a_service_hears_which_client_calls() -> None:
    heard: list[str] = []

    async def GetSession(
        request: session_service_pb2.GetSessionRequest, context: aio.ServicerContext[object, object]
    ) -> session_service_pb2.Session:
        heard.extend(
            str(value) for key, value in context.invocation_metadata() or () if key == "user-agent"
        )
        return session_service_pb2.Session()

    def register(server: aio.Server) -> None:
        add(server, "SessionService", "unary", GetSession, session_service_pb2.GetSessionRequest)

    async with serving(register) as port:
        connection = Connection(f"127.0.0.1:{port}")
        method = connection.channel.unary_unary(
            "/palimpsest.v1.SessionService/GetSession",
            request_serializer=session_service_pb2.GetSessionRequest.SerializeToString,
            response_deserializer=session_service_pb2.Session.FromString,
        )
        await connection.call(method, session_service_pb2.GetSessionRequest())
        await connection.close()
    (agent,) = heard
    assert agent.startswith(f"palimpsest-sdk/{version('palimpsest-sdk')} grpc-python-asyncio/")


def test_the_client_knows_its_version() -> None:
    assert palimpsest.__version__ == version("palimpsest-sdk")
