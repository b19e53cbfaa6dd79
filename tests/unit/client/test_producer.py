"""A producer over lost connections: every chunk once, in order."""

from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from grpc import aio
from hypothesis import given, settings
from hypothesis import strategies as st

import palimpsest
from palimpsest import _convert_chunks
from palimpsest._send_queue import MAX_CHUNK_BYTES
from palimpsest._transport import MAX_SENT_BYTES
from palimpsest.v1 import session_service_pb2
from tests.support.properties import examples
from tests.unit.client.server import add, serving

Request = session_service_pb2.AppendChunksRequest
Response = session_service_pb2.AppendChunksResponse


class Log:
    """A log whose streams end after so many messages, and with such a status.

    A batch that is the last message of its stream is stored, and not acked.
    """

    def __init__(self, script: list[tuple[int, grpc.StatusCode]]) -> None:
        self.script = list(script)
        self.texts: list[str] = []
        self.streams = 0

    async def AppendChunks(
        self, requests: AsyncIterator[Request], context: Any
    ) -> AsyncIterator[Response]:
        self.streams += 1
        left, code = self.script.pop(0) if self.script else (10**9, grpc.StatusCode.OK)
        async for request in requests:
            for produced in request.batch.chunks:
                assert produced.digest == _convert_chunks.digest(produced)
                if produced.producer_sequence > len(self.texts):
                    assert produced.producer_sequence == len(self.texts) + 1, "no gap"
                    self.texts.append(produced.text)
            if left == 0:
                await context.abort(code, "as the test says")
            left -= 1
            reached = len(self.texts)
            if request.HasField("open"):
                credits = session_service_pb2.AppendChunksResponse.Credits(chunks=4, bytes=1000)
                yield Response(
                    opened=Response.Opened(last_producer_sequence=reached, credits=credits)
                )
            else:
                ack = session_service_pb2.AppendChunksResponse.Ack(
                    through_producer_sequence=reached, through_position=reached, read_token="t"
                )
                yield Response(ack=ack)

    def register(self, server: aio.Server) -> None:
        add(server, "SessionService", "streams", self.AppendChunks, Request)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("palimpsest._async._producer.STREAM_BACKOFF_SECONDS", (0.001, 0.01))


async def append(log: Log, texts: list[str]) -> palimpsest.Ack | None:
    async with serving(log.register) as port, palimpsest.connect(f"127.0.0.1:{port}") as client:
        async with client.session("s").producer("p") as producer:
            for text in texts:
                await producer.append(text)
            return await producer.flush()


@settings(max_examples=examples(30))
@given(
    cuts=st.lists(
        st.tuples(
            st.integers(0, 4),
            st.sampled_from([grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED]),
        ),
        max_size=6,
    )
)
async def test_wherever_streams_end_each_chunk_is_stored_once(
    cuts: list[tuple[int, grpc.StatusCode]],
) -> None:
    log = Log(cuts)
    texts = [f"chunk {number}" for number in range(12)]
    ack = await append(log, texts)
    assert log.texts == texts
    assert ack is not None, "its token stands for all that was appended"
    assert ack.producer_sequence == 12
    assert log.streams <= len(cuts) + 1


async def test_a_refusal_is_raised_with_its_reason() -> None:
    log = Log([(1, grpc.StatusCode.ABORTED)])
    with pytest.raises(palimpsest.Aborted, match="as the test says"):
        await append(log, ["a"])


async def test_a_chunk_that_no_message_holds_harms_no_other() -> None:
    log = Log([])
    async with (
        serving(log.register) as port,
        palimpsest.connect(f"127.0.0.1:{port}") as client,
        client.session("s").producer("p") as producer,
    ):
        await producer.append("a")
        with pytest.raises(palimpsest.InvalidArgument) as caught:
            await producer.append("x" * MAX_SENT_BYTES)
        assert caught.value.metadata["producer_sequence"] == "2"
        await producer.append("x" * (MAX_CHUNK_BYTES - 100))
        await producer.append("b")
    assert [text[:1] for text in log.texts] == ["a", "x", "b"]


async def test_a_producer_of_a_closed_client_says_so() -> None:
    async with palimpsest.connect("127.0.0.1:1") as client:
        session = client.session("s")
    with pytest.raises(palimpsest.ProducerClosed, match="client of this producer is closed"):
        async with session.producer("p"):
            pass
