"""One batch of a producer, over a stream of its own, as a client sends it by hand."""

from collections.abc import AsyncIterator, Sequence
from typing import Any

from palimpsest.v1 import chunks_pb2, session_service_pb2

Request = session_service_pb2.AppendChunksRequest


async def append_batch(
    stub: Any, opening: Request.Open, chunks: Sequence[chunks_pb2.Chunk], **call: Any
) -> session_service_pb2.AppendChunksResponse.Ack:
    """Opens a stream and sends one batch; returns its ack.

    `call`: timeout and metadata of the call. Raises AioRpcError for a refusal.
    """

    async def frames() -> AsyncIterator[Request]:
        yield Request(open=opening)
        yield Request(batch=Request.Batch(chunks=chunks))

    ack = session_service_pb2.AppendChunksResponse.Ack()
    async for response in stub.AppendChunks(frames(), **call):
        ack = response.ack
    return ack
