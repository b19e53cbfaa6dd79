"""One batch of a producer, over a stream of its own, as a client sends it by hand."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from grpc import aio

from palimpsest.v1 import chunks_pb2, session_service_pb2

Request = session_service_pb2.AppendChunksRequest


async def append_batch(
    stub: Any, opening: Request.Open, chunks: Sequence[chunks_pb2.Chunk], **call: Any
) -> session_service_pb2.AppendChunksResponse.Ack:
    """Opens a stream and sends one batch; returns its ack.

    `call`: timeout and metadata of the call. Raises AioRpcError for a refusal.
    """

    stream = stub.AppendChunks(**call)
    await stream.write(Request(open=opening))
    # A stream that is refused here ends, and gRPC reports a write to it as its own error instead.
    await stream.read()
    with suppress(asyncio.InvalidStateError):
        # It has ended meanwhile: reading raises what it ended with.
        await stream.write(Request(batch=Request.Batch(chunks=chunks)))
        await stream.done_writing()
    ack = session_service_pb2.AppendChunksResponse.Ack()
    while (response := await stream.read()) is not aio.EOF:
        ack = response.ack
    return ack
