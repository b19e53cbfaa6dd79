"""What a producer says of a refusal, and how often."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from google.protobuf import any_pb2
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

import palimpsest
from palimpsest.v1 import session_service_pb2
from tests.unit.client.server import add, serving

Request = session_service_pb2.AppendChunksRequest
Response = session_service_pb2.AppendChunksResponse


class Picky:
    """A log that refuses the text "bad", naming its field, and "lost" the second time.

    The first time it ends the stream without a word.
    """

    def __init__(self, opened: list[int]) -> None:
        #: The durable sequence that each stream gets first.
        self.opened = list(opened)
        self.lost = False

    async def AppendChunks(
        self, requests: AsyncIterator[Request], context: Any
    ) -> AsyncIterator[Response]:
        async for request in requests:
            if request.HasField("open"):
                credits = session_service_pb2.AppendChunksResponse.Credits(chunks=100, bytes=10_000)
                yield Response(
                    opened=Response.Opened(
                        last_producer_sequence=self.opened.pop(0), credits=credits
                    )
                )
                continue
            chunks = request.batch.chunks
            for index, produced in enumerate(chunks):
                if produced.text == "bad":
                    await context.abort_with_status(_refusal(f"batch.chunks[{index}]"))
                if produced.text == "lost":
                    if self.lost:
                        await context.abort_with_status(_changed(produced.producer_sequence))
                    self.lost = True
                    return
            last = chunks[-1].producer_sequence
            yield Response(
                ack=session_service_pb2.AppendChunksResponse.Ack(
                    through_producer_sequence=last, through_position=last, read_token="t"
                )
            )

    def register(self, server: Any) -> None:
        add(server, "SessionService", "streams", self.AppendChunks, Request)


def _refusal(field: str) -> Any:
    violation = error_details_pb2.BadRequest.FieldViolation(field=field, description="is bad")
    detail = error_details_pb2.BadRequest(field_violations=[violation])
    return _status(3, f"{field}: is bad", detail)


def _changed(sequence: int) -> Any:
    detail = error_details_pb2.ErrorInfo(
        reason="SEQUENCE_CONTENT_CHANGED", metadata={"producer_sequence": str(sequence)}
    )
    return _status(6, "another process uses this producer id", detail)


def _status(code: int, message: str, detail: Message) -> Any:
    packed = any_pb2.Any()
    packed.Pack(detail)
    return rpc_status.to_status(status_pb2.Status(code=code, message=message, details=[packed]))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("palimpsest._async._producer.STREAM_BACKOFF_SECONDS", (0.001, 0.01))


async def _append(log: Picky, texts: list[str], *, first: int = 0) -> palimpsest.PalimpsestError:
    """Appends in a block that catches what is wrong; that."""
    caught: list[palimpsest.PalimpsestError] = []
    async with serving(log.register) as port, palimpsest.connect(f"127.0.0.1:{port}") as client:
        async with client.session("s").producer("p") as producer:
            for text in texts[:first]:
                await producer.append(text)
            await producer.flush()
            for text in texts[first:]:
                await producer.append(text)
            with pytest.raises(palimpsest.PalimpsestError) as refused:
                await producer.flush()
            caught.append(refused.value)
    # It was not raised again at the end of the block.
    return caught[0]


async def test_a_refusal_by_a_field_names_the_append() -> None:
    error = await _append(Picky([10]), ["a", "b", "c", "bad", "d"], first=2)
    assert isinstance(error, palimpsest.InvalidArgument)
    assert str(error).startswith("append 14 was refused: batch.chunks[1]: is bad.")
    assert "up to 12 is durable" in str(error)
    assert error.metadata == {"producer_sequence": "14"}
    assert error.fields == {"batch.chunks[1]": "is bad"}


async def test_what_another_process_stored_meanwhile_is_not_taken_for_ours() -> None:
    error = await _append(Picky([0, 7]), ["a", "lost"], first=1)
    assert isinstance(error, palimpsest.AlreadyExists)
    assert error.reason == "SEQUENCE_CONTENT_CHANGED"
    assert str(error).startswith("append 2 was refused: another process uses this producer id.")
    assert "up to 1 is durable" in str(error)
