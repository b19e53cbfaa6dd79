"""Appending over gRPC, to a real server on a real database."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import grpc
import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from grpc import aio

import palimpsest
from palimpsest import _convert_chunks, _errors
from palimpsest.v1 import chunks_pb2, session_service_pb2, session_service_pb2_grpc
from service.domain.log.chunks import Chunk, ChunkKind, LoggedChunk
from service.rpc.convert import chunks as convert
from verification.batches import append_batch


@pytest.fixture
async def session(client: palimpsest.Client) -> palimpsest.Session:
    return await client.create_session(f"append-{uuid4().hex}")


@pytest.fixture
async def stub(client: palimpsest.Client) -> session_service_pb2_grpc.SessionServiceStub:
    return session_service_pb2_grpc.SessionServiceStub(client.channel)


def produced(sequence: int, text: str = "", **fields: Any) -> chunks_pb2.Chunk:
    text = text or f"chunk {sequence}"
    return chunks_pb2.Chunk(producer_sequence=sequence, text=text, **fields)


def sending(
    stub: Any, session: palimpsest.Session, *chunks: chunks_pb2.Chunk, **fields: Any
) -> Any:
    """Sends one batch of the producer p."""
    return append_batch(stub, opening(session, **fields).open, chunks)


async def refused(call: Any) -> palimpsest.PalimpsestError:
    with pytest.raises(aio.AioRpcError) as caught:
        await call
    return _errors.from_rpc(caught.value, "test")


async def texts(session: palimpsest.Session) -> list[str]:
    return [chunk.text async for chunk in session.chunks()]


async def test_chunks_of_every_kind_come_back_as_they_were(session: palimpsest.Session) -> None:
    async with session.producer("p") as producer:
        await producer.append("text ü 😀", metadata={"source": "a"})
        await producer.append_message("user", "hello")
        await producer.append_step(observation="saw", thought="", action="did")
        ack = await producer.flush()
    assert ack is not None
    assert (ack.producer_sequence, ack.position) == (3, 3)
    one, two, three = [chunk async for chunk in session.chunks()]
    assert (one.kind, one.text, one.metadata) == ("text", "text ü 😀", {"source": "a"})
    assert (two.kind, two.role, two.text) == ("message", "user", "hello")
    assert (three.kind, three.observation, three.thought, three.action) == (
        "agent_step",
        "saw",
        "",
        "did",
    )
    info = await session.info()
    assert (info.head, info.content_bytes) == (3, len("text ü 😀sourceauserhellosawdid".encode()))


async def test_a_resend_is_acked_with_its_first_position(session: Any, stub: Any) -> None:
    first = await sending(stub, session, produced(1), produced(2))
    again = await sending(stub, session, produced(1))
    mixed = await sending(stub, session, produced(2), produced(3))
    assert [one.through_position for one in (first, again, mixed)] == [2, 1, 3]
    assert [one.through_producer_sequence for one in (first, again, mixed)] == [2, 1, 3]
    assert await texts(session) == ["chunk 1", "chunk 2", "chunk 3"]


async def test_a_changed_resend_a_gap_and_a_stale_epoch_are_refused(
    session: Any, stub: Any
) -> None:
    await sending(stub, session, produced(1), epoch=2)
    changed = await refused(sending(stub, session, produced(1, "other"), epoch=2))
    assert isinstance(changed, palimpsest.AlreadyExists)
    assert changed.reason == "SEQUENCE_CONTENT_CHANGED"
    assert changed.metadata == {"producer": "p", "producer_sequence": "1", "position": "1"}
    gap = await refused(sending(stub, session, produced(5), epoch=2))
    assert isinstance(gap, palimpsest.OutOfRange)
    assert gap.metadata == {"expected": "2", "received": "5"}
    stale = await refused(sending(stub, session, produced(2), epoch=1))
    assert isinstance(stale, palimpsest.Aborted)
    assert stale.reason == "PRODUCER_FENCED"
    head = await refused(sending(stub, session, produced(2), epoch=2, expected_head=9))
    assert (head.reason, head.metadata["head"]) == ("HEAD_MISMATCH", "1")
    assert await texts(session) == ["chunk 1"]


NAMED = {"chunk": "1", "producer_sequence": "2"}


@pytest.mark.parametrize(
    ("chunk", "reason", "field", "metadata"),
    [
        ({}, "FIELD_INVALID", ".content", {}),
        ({"text": "x", "digest": b"short"}, "FIELD_INVALID", ".digest", {}),
        ({"text": "x", "digest": b"0" * 32}, "DIGEST_MISMATCH", ".digest", NAMED),
        ({"text": "a\0b"}, "FIELD_INVALID", "", NAMED),
        (
            {"text": "x" * 262_145},
            "CHUNK_TOO_LARGE",
            "",
            {**NAMED, "bytes": "262145", "limit_bytes": "262144"},
        ),
        ({"agent_step": chunks_pb2.Chunk.AgentStep()}, "CHUNK_EMPTY", "", NAMED),
        (
            {"text": "x", "metadata": {str(n): "v" for n in range(17)}},
            "FIELD_INVALID",
            ".metadata",
            {},
        ),
        ({"text": "x", "thread": "a/b"}, "FIELD_INVALID", ".thread", {}),
        ({"text": "x", "source": " a"}, "FIELD_INVALID", ".source", {}),
    ],
)
async def test_a_bad_chunk_names_its_field_and_stores_nothing(
    session: Any, stub: Any, chunk: dict[str, Any], reason: str, field: str, metadata: Any
) -> None:
    sent = chunks_pb2.Chunk(producer_sequence=2, **chunk)
    error = await refused(sending(stub, session, produced(1), sent))
    assert isinstance(error, palimpsest.InvalidArgument)
    assert (error.reason, error.metadata) == (reason, metadata)
    assert list(error.fields) == [f"batch.chunks[1]{field}"]
    sent.producer_sequence = 0
    unary = session_service_pb2.AppendRequest(session=session.id, chunks=[sent])
    error = await refused(stub.Append(unary))
    metadata = {name: value for name, value in metadata.items() if name != "producer_sequence"}
    assert (error.reason, error.metadata) == (reason, metadata | {"chunk": "0"} if metadata else {})
    assert list(error.fields) == [f"chunks[0]{field}"]
    assert await texts(session) == []


async def test_a_producer_numbers_its_chunks(session: Any, stub: Any) -> None:
    error = await refused(sending(stub, session, produced(0, "x")))
    assert list(error.fields) == ["batch.chunks[0].producer_sequence"]
    numbered = session_service_pb2.AppendRequest(session=session.id, chunks=[produced(1)])
    error = await refused(stub.Append(numbered))
    assert (error.reason, list(error.fields)) == (
        "FIELD_INVALID",
        ["chunks[0].producer_sequence"],
    )
    assert await texts(session) == []


async def test_what_the_server_assigns_is_ignored_in_a_request(session: Any, stub: Any) -> None:
    sent = chunks_pb2.Chunk(
        text="a", position=9, producer_id="other", created_at=Timestamp(seconds=1)
    )
    await stub.Append(session_service_pb2.AppendRequest(session=session.id, chunks=[sent]))
    found = await session.chunk(1)
    assert (found.text, found.position, found.producer_id) == ("a", 1, "")
    assert found.created_at.year > 2000


async def test_batches_and_messages_have_limits(session: Any, stub: Any) -> None:
    many = await refused(sending(stub, session, *(produced(n + 1) for n in range(257))))
    assert many.reason == "FIELD_INVALID"
    big = [produced(n + 1, "x" * 260_000) for n in range(5)]
    large = await refused(sending(stub, session, *big))
    assert (large.reason, large.metadata["limit_bytes"]) == ("BATCH_TOO_LARGE", "1048576")
    assert list(large.fields) == ["batch.chunks"]
    huge = [chunks_pb2.Chunk(text="x" * 260_000) for _ in range(17)]
    with pytest.raises(aio.AioRpcError) as caught:
        async with aio.insecure_channel(session._connection.address) as channel:
            await session_service_pb2_grpc.SessionServiceStub(channel).Append(
                session_service_pb2.AppendRequest(session=session.id, chunks=huge)
            )
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert await texts(session) == []


async def test_an_unknown_session_is_named(client: palimpsest.Client) -> None:
    with pytest.raises(palimpsest.NotFound) as caught:
        async with client.session("nobody").producer("p"):
            raise AssertionError("it is refused before")
    assert caught.value.reason == "SESSION_NOT_FOUND"
    assert caught.value.metadata == {"session": "nobody"}


async def frames(*requests: session_service_pb2.AppendChunksRequest) -> AsyncIterator[Any]:
    for one in requests:
        yield one


def opening(session: palimpsest.Session, **fields: Any) -> session_service_pb2.AppendChunksRequest:
    open_frame = session_service_pb2.AppendChunksRequest.Open(
        session=session.id, producer_id="p", **fields
    )
    return session_service_pb2.AppendChunksRequest(open=open_frame)


def batch(*chunks: chunks_pb2.Chunk) -> session_service_pb2.AppendChunksRequest:
    return session_service_pb2.AppendChunksRequest(
        batch=session_service_pb2.AppendChunksRequest.Batch(chunks=chunks)
    )


async def responses(call: Any) -> tuple[list[Any], palimpsest.PalimpsestError | None]:
    heard: list[Any] = []
    try:
        async for response in call:
            heard.append(response)
    except aio.AioRpcError as error:
        return heard, _errors.from_rpc(error, "test")
    return heard, None


async def test_a_refusal_ends_the_stream_after_acking_what_was_committed(
    session: Any, stub: Any
) -> None:
    call = stub.AppendChunks(
        frames(opening(session), batch(produced(1), produced(2)), batch(produced(9)))
    )
    heard, error = await responses(call)
    assert heard[0].opened.last_producer_sequence == 0
    assert heard[-1].ack.through_producer_sequence == 2
    assert error is not None
    assert error.metadata == {"expected": "3", "received": "9"}
    heard, error = await responses(stub.AppendChunks(frames(opening(session))))
    assert error is None
    assert heard[0].opened.last_producer_sequence == 2
    assert heard[0].opened.credits.chunks == 1024


async def test_a_misused_stream_is_refused(session: Any, stub: Any) -> None:
    for sent in ([batch(produced(1))], [opening(session), opening(session)]):
        _, error = await responses(stub.AppendChunks(frames(*sent)))
        assert error is not None
        assert error.reason == "STREAM_MISUSED"


async def test_a_higher_epoch_fences_an_open_stream_off(session: Any) -> None:
    async with session.producer("p", epoch=1) as old:
        await old.append("by the old one")
        await old.flush()
        async with session.producer("p", epoch=2) as new:
            await new.append("by the new one")
        await old.append("too late")
        with pytest.raises(palimpsest.Aborted) as caught:
            await old.flush()
        assert caught.value.reason == "PRODUCER_FENCED"
        # The refusal itself is raised once.
        with pytest.raises(palimpsest.ProducerClosed, match="taken over by epoch 2"):
            await old.append("and again")
        old._failure = None
        old._queue._waiting.clear()
        old._queue._under_way.clear()
        old._queue._next_sequence = old.last_acked_sequence + 1
    assert await texts(session) == ["by the old one", "by the new one"]


async def test_many_producers_interleave_without_gaps(session: Any) -> None:
    async def produce(name: str) -> None:
        async with session.producer(name) as producer:
            for number in range(300):
                await producer.append(f"{name}:{number}")

    await asyncio.gather(*(produce(f"p{n}") for n in range(5)))
    chunks = [chunk async for chunk in session.chunks()]
    assert [chunk.position for chunk in chunks] == list(range(1, 1501))
    for name in {chunk.producer_id for chunk in chunks}:
        own = [chunk for chunk in chunks if chunk.producer_id == name]
        assert [chunk.producer_sequence for chunk in own] == list(range(1, 301))
        assert [chunk.text for chunk in own] == [f"{name}:{n}" for n in range(300)]


async def test_credits_hold_a_producer_back(session: Any) -> None:
    async with session.producer("p") as producer:
        for _ in range(3000):
            await producer.append("x" * 3000)
            held = len(producer._queue._waiting) + len(producer._queue._under_way)
            assert held <= 1024
            assert producer._queue._bytes <= 8 * 1024 * 1024
    assert (await session.info()).head == 3000


def test_client_and_server_agree_on_digests() -> None:
    at = datetime(1969, 7, 20, 20, 17, 40, 123_456, tzinfo=UTC)
    occurred_at = Timestamp()
    occurred_at.FromDatetime(at)
    pairs = [
        (
            chunks_pb2.Chunk(text="t", thread="ü", source="s", occurred_at=occurred_at),
            Chunk(kind=ChunkKind.TEXT, text="t", thread="ü", source="s", occurred_at=at),
        ),
        (
            chunks_pb2.Chunk(text="t", source="s"),
            Chunk(kind=ChunkKind.TEXT, text="t", source="s"),
        ),
        (
            chunks_pb2.Chunk(text="ü", metadata={"b": "2", "a": "1"}),
            Chunk(kind=ChunkKind.TEXT, text="ü", metadata={"a": "1", "b": "2"}),
        ),
        (
            chunks_pb2.Chunk(message=chunks_pb2.Chunk.Message(role="r", text="t")),
            Chunk(kind=ChunkKind.MESSAGE, role="r", text="t"),
        ),
        (
            chunks_pb2.Chunk(agent_step=chunks_pb2.Chunk.AgentStep(thought="t")),
            Chunk(kind=ChunkKind.STEP, thought="t"),
        ),
        (
            chunks_pb2.Chunk(
                agent_step=chunks_pb2.Chunk.AgentStep(thought="t", observed_first=True)
            ),
            Chunk(kind=ChunkKind.STEP, thought="t", observed_first=True),
        ),
        (
            chunks_pb2.Chunk(
                agent_step=chunks_pb2.Chunk.AgentStep(thought="t", observed_first=False)
            ),
            Chunk(kind=ChunkKind.STEP, thought="t"),
        ),
    ]
    for message, chunk in pairs:
        assert _convert_chunks.digest(message) == chunk.digest()
        assert _convert_chunks.size_bytes(message) == chunk.size_bytes()


@pytest.mark.parametrize("observed_first", [False, True, None])
def test_client_and_server_agree_on_the_order_of_a_step(observed_first: bool | None) -> None:
    chunk = Chunk(
        kind=ChunkKind.STEP,
        observation="seen",
        thought="known",
        action="done",
        observed_first=observed_first,
        thread="t",
        source="s",
        occurred_at=datetime(2026, 5, 3, 10, tzinfo=UTC),
    )
    logged = LoggedChunk(
        position=1,
        chunk=chunk,
        producer_id="p",
        producer_sequence=1,
        created_at=datetime.now(UTC),
    )
    found = _convert_chunks.chunk(convert.chunk(logged))
    assert found.observed_first is (observed_first is not False)
    assert _convert_chunks.text_of(found) == chunk.as_text()
