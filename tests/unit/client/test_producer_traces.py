"""Batches of chunks that were appended in different traces."""

from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from grpc import aio
from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

import palimpsest
from palimpsest._send_queue import TRACE_CHUNKS
from palimpsest.v1 import session_service_pb2
from tests.unit.client.server import add, serving

Request = session_service_pb2.AppendChunksRequest
Response = session_service_pb2.AppendChunksResponse
#: No trace, or one that is not sampled.
NONE, LEFT_OUT = 0, -1


class Batches:
    """A log that notes of each batch how many chunks it has, and its trace."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, str]] = []

    async def AppendChunks(
        self, requests: AsyncIterator[Request], context: Any
    ) -> AsyncIterator[Response]:
        reached = 0
        async for request in requests:
            if request.HasField("open"):
                credits = session_service_pb2.AppendChunksResponse.Credits(
                    chunks=1000, bytes=1_000_000
                )
                yield Response(opened=Response.Opened(credits=credits))
                continue
            batch = request.batch
            self.seen.append((len(batch.chunks), batch.traceparent[3:35].lstrip("0")))
            reached += len(batch.chunks)
            yield Response(
                ack=session_service_pb2.AppendChunksResponse.Ack(
                    through_producer_sequence=reached, through_position=reached, read_token="t"
                )
            )

    def register(self, server: aio.Server) -> None:
        add(server, "SessionService", "streams", self.AppendChunks, Request)


async def batches(traces: Sequence[int]) -> list[tuple[int, str]]:
    """Returns the batches of chunks that wait together, each appended in such a trace."""
    log = Batches()
    async with serving(log.register) as port, palimpsest.connect(f"127.0.0.1:{port}") as client:
        async with client.session("s").producer("p") as producer:
            for number in traces:
                flags = TraceFlags.SAMPLED if number > 0 else TraceFlags.DEFAULT
                context = SpanContext(
                    trace_id=number % 2**127,
                    span_id=7,
                    is_remote=False,
                    trace_flags=TraceFlags(flags),
                )
                with trace.use_span(NonRecordingSpan(context)):
                    await producer.append("a")
            await producer.flush()
    return log.seen


async def test_where_few_wait_each_sampled_trace_has_batches_of_its_own() -> None:
    assert await batches([1, 1, 2, NONE, NONE, 2]) == [(2, "1"), (1, "2"), (2, ""), (1, "2")]


async def test_where_many_wait_another_trace_goes_along() -> None:
    seen = await batches(range(1, 4 * TRACE_CHUNKS + 1))
    whole = [(TRACE_CHUNKS, f"{1 + n * TRACE_CHUNKS:x}") for n in range(3)]
    assert seen[:3] == whole, "of the first one's trace"
    assert sum(size for size, _ in seen) == 4 * TRACE_CHUNKS
    assert len(seen) <= 3 + TRACE_CHUNKS


@pytest.mark.parametrize("before", [NONE, LEFT_OUT])
async def test_a_batch_belongs_to_the_first_of_its_traces_that_is_sampled(before: int) -> None:
    seen = await batches([before, *([5] * 2 * TRACE_CHUNKS)])
    assert seen[0] == (1 + 2 * TRACE_CHUNKS, "5")
