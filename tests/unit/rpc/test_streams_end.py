"""What is about a stream ends with it, wherever its call was cut."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any

import grpc
from grpc import aio

from service.rpc.interceptors.base import Around, Context

_inside: ContextVar[str] = ContextVar("inside", default="")


class Noting(Around):
    """Notes how each call ended, in the context in which it began."""

    def __init__(self, name: str, ended: list[str]) -> None:
        super().__init__()
        self._name = name
        self._ended = ended

    @asynccontextmanager
    async def around(self, method: str, request: Any, context: Context) -> AsyncIterator[None]:
        token = _inside.set(self._name)
        try:
            yield
        finally:
            _inside.reset(token)
            self._ended.append(self._name)


async def test_a_stream_that_is_cut_while_it_writes_ends_at_once_and_in_its_context() -> None:
    ended: list[str] = []

    async def endless(request: bytes, context: Context) -> AsyncIterator[bytes]:
        """Streams more than any client reads."""
        try:
            while True:
                yield b"t" * 10_000
        finally:
            ended.append("handler")

    around = [Noting("outer", ended), Noting("inner", ended)]
    server = aio.server(interceptors=around, options=(("grpc.so_reuseport", 0),))
    handler: Any = grpc.unary_stream_rpc_method_handler(endless)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("tests.Streams", {"Tell": handler}),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        tell: Any = channel.unary_stream("/tests.Streams/Tell")
        call = tell(b"")
        assert await call.read()
        # Until nothing more fits between them, and the server waits for room.
        await asyncio.sleep(0.3)
        call.cancel()
        assert await call.code() is grpc.StatusCode.CANCELLED
        async with asyncio.timeout(60):
            while "outer" not in ended:
                await asyncio.sleep(0.01)
    await server.stop(None)
    assert ended == ["handler", "inner", "outer"]
