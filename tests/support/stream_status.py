"""What a stream of gRPC ended with, for tests that read raw messages."""

from typing import Any, NoReturn

from grpc import aio


async def raise_status(call: Any) -> NoReturn:
    """Raises the AioRpcError that a stream ended with."""
    raise aio.AioRpcError(
        await call.code(),
        await call.initial_metadata(),
        await call.trailing_metadata(),
        details=await call.details(),
    )
