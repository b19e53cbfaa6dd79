"""A small gRPC server in the test's own process, whose services the test writes."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
from google.protobuf.message import Message
from grpc import aio

_KINDS = {
    "unary": grpc.unary_unary_rpc_method_handler,
    "told": grpc.unary_stream_rpc_method_handler,
    "streams": grpc.stream_stream_rpc_method_handler,
}


def add(server: aio.Server, service: str, kind: str, handle: Any, request: type[Message]) -> None:
    """Serves one method, called as `handle` is, of a service of the request's package."""
    handler: grpc.RpcMethodHandler[Any, Any] = _KINDS[kind](
        handle,
        request_deserializer=request.FromString,
        response_serializer=lambda message: message.SerializeToString(),
    )
    served = grpc.method_handlers_generic_handler(
        f"{request.DESCRIPTOR.file.package}.{service}", {handle.__name__: handler}
    )
    server.add_generic_rpc_handlers((served,))


@asynccontextmanager
async def serving(register: Callable[[aio.Server], Any], port: int = 0) -> AsyncIterator[int]:
    """Serves what `register` adds, on a free port unless one is given; the port."""
    # Without it a server that is still there would get the calls of the next one.
    server = aio.server(options=(("grpc.so_reuseport", 0),))
    register(server)
    bound = server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    try:
        yield bound
    finally:
        await server.stop(None)
