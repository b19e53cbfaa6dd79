"""Appending without a producer, over gRPC, to real servers on a real database."""

import asyncio
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from grpc import aio

import palimpsest
from palimpsest import _errors
from palimpsest.v1 import chunks_pb2, session_service_pb2, session_service_pb2_grpc
from tests.support.harness import Servers, api
from verification.chaos.switches import Action, Switches, environment


@pytest.fixture
async def session(client: palimpsest.Client) -> palimpsest.Session:
    return await client.create_session(f"request-{uuid4().hex}")


@pytest.fixture
async def stub(client: palimpsest.Client) -> session_service_pb2_grpc.SessionServiceStub:
    return session_service_pb2_grpc.SessionServiceStub(client.channel)


def request(
    session: palimpsest.Session, *texts: str, **fields: Any
) -> session_service_pb2.AppendRequest:
    chunks = [chunks_pb2.Chunk(text=text) for text in texts]
    return session_service_pb2.AppendRequest(session=session.id, chunks=chunks, **fields)


async def refused(call: Any) -> palimpsest.PalimpsestError:
    with pytest.raises(aio.AioRpcError) as caught:
        await call
    return _errors.from_rpc(caught.value, "test")


async def waits(other: psycopg.Connection) -> None:
    """Returns once a statement waits for what this transaction has written."""
    query = "SELECT FROM pg_locks WHERE NOT granted AND locktype = 'transactionid'"
    for _ in range(1000):
        if other.execute(query).fetchone() is not None:
            return
        await asyncio.sleep(0.01)
    pytest.fail("nothing waits")


async def log_of(session: palimpsest.Session) -> list[tuple[str, str, int]]:
    found = [chunk async for chunk in session.chunks()]
    return [(one.text, one.producer_id, one.producer_sequence) for one in found]


async def test_the_server_numbers_what_comes_without_a_producer(session: Any, stub: Any) -> None:
    first = await stub.Append(request(session, "a", "b"))
    async with session.producer("p") as producer:
        await producer.append("c")
    second = await stub.Append(request(session, "d"))
    assert (first.positions.first, first.positions.last) == (1, 2)
    assert (second.positions.first, second.positions.last) == (4, 4)
    assert first.read_token
    assert await log_of(session) == [("a", "", 1), ("b", "", 2), ("c", "p", 1), ("d", "", 3)]


async def test_without_an_id_each_call_appends(session: Any, stub: Any) -> None:
    for position in (1, 2):
        answer = await stub.Append(request(session, "same"))
        assert answer.positions.first == position


async def test_a_request_that_comes_again_gets_its_first_result(session: Any, stub: Any) -> None:
    sent = request(session, "a", "b", request_id="order-17 ü")
    first = await stub.Append(sent)
    await stub.Append(request(session, "c"))
    # Whatever it expected of the head was so when it was done.
    sent.expected_head = 0
    assert await stub.Append(sent) == first
    assert [text for text, *_ in await log_of(session)] == ["a", "b", "c"]


@pytest.mark.parametrize(
    "other",
    [
        [chunks_pb2.Chunk(text="a")],
        [chunks_pb2.Chunk(text="ab")],
        [chunks_pb2.Chunk(text="b"), chunks_pb2.Chunk(text="a")],
        [chunks_pb2.Chunk(text="a"), chunks_pb2.Chunk(text="b", metadata={"k": "v"})],
        [
            chunks_pb2.Chunk(text="a"),
            chunks_pb2.Chunk(message=chunks_pb2.Chunk.Message(role="user", text="b")),
        ],
    ],
)
async def test_other_content_under_the_same_id_is_refused(
    session: Any, stub: Any, other: list[chunks_pb2.Chunk]
) -> None:
    await stub.Append(request(session, "a", "b", request_id="r"))
    sent = request(session, request_id="r")
    sent.chunks.extend(other)
    error = await refused(stub.Append(sent))
    assert isinstance(error, palimpsest.AlreadyExists)
    assert error.reason == "REQUEST_CONTENT_CHANGED"
    assert error.metadata == {"request_id": "r", "method": "Append"}
    assert len(await log_of(session)) == 2


async def test_an_id_is_one_of_its_session(client: Any, session: Any, stub: Any) -> None:
    beside = await client.create_session(f"beside-{uuid4().hex}")
    await stub.Append(request(session, "a", request_id="r"))
    await stub.Append(request(beside, "b", request_id="r"))
    assert await log_of(session) == [("a", "", 1)]
    assert await log_of(beside) == [("b", "", 1)]


async def test_a_refused_request_is_not_remembered(session: Any, stub: Any) -> None:
    error = await refused(stub.Append(request(session, "a", request_id="r", expected_head=7)))
    assert error.reason == "HEAD_MISMATCH"
    done = await stub.Append(request(session, "something else", request_id="r"))
    assert done.positions.first == 1


async def test_a_session_that_is_not_there_is_named(client: Any, stub: Any) -> None:
    missing = client.session("no-such-session")
    error = await refused(stub.Append(request(missing, "a", request_id="r")))
    assert (error.reason, error.metadata) == ("SESSION_NOT_FOUND", {"session": missing.id})


@pytest.mark.parametrize("request_id", ["a\0b", "a\nb", "r" * 129])
async def test_a_bad_request_id_is_refused(session: Any, stub: Any, request_id: str) -> None:
    error = await refused(stub.Append(request(session, "a", request_id=request_id)))
    assert (error.reason, list(error.fields)) == ("FIELD_INVALID", ["request_id"])
    assert await log_of(session) == []


async def test_the_same_request_at_two_servers_at_once_is_written_once(
    servers: Servers, url: str
) -> None:
    with api(url) as (_, one), api(url) as (_, other):
        async with palimpsest.connect(one) as here, palimpsest.connect(other) as there:
            session = await here.create_session("s")
            stubs = [
                session_service_pb2_grpc.SessionServiceStub(client.channel)
                for client in (here, there)
            ]
            for turn in range(30):
                sent = request(session, f"turn {turn}", request_id=f"r{turn}")
                answers = await asyncio.gather(*(stub.Append(sent) for stub in stubs * 2))
                assert {answer.positions.first for answer in answers} == {turn + 1}
            assert [text for text, *_ in await log_of(session)] == [f"turn {n}" for n in range(30)]
    with psycopg.connect(servers.as_superuser(url)) as look:
        rows = look.execute("SELECT count(*), count(DISTINCT last_position) FROM request")
        assert rows.fetchone() == (30, 30)


@pytest.mark.parametrize("is_small", [True, False])
async def test_an_id_that_another_method_takes_meanwhile_refuses_that_append_alone(
    servers: Servers, url: str, is_small: bool
) -> None:
    with api(url) as (_, address), psycopg.connect(servers.as_superuser(url)) as other:
        async with palimpsest.connect(address) as client:
            session = await client.create_session("s")
            stub = session_service_pb2_grpc.SessionServiceStub(client.channel)
            await stub.Append(request(session, "a"))
            # As EditMemory stores it: its transaction holds no lock of the session.
            other.execute(
                "INSERT INTO request (tenant_id, session_key, request_id, method, digest,"
                " response, expires_at) SELECT tenant_id, session_key, 'r', 'EditMemory',"
                " sha256(''), '', now() + interval '1 day' FROM session"
            )
            texts = ["b"] if is_small else ["b"] * 20
            sent = request(session, *texts, request_id="r")
            taken = asyncio.ensure_future(refused(stub.Append(sent)))
            await waits(other)
            # What is queued after it is written with it or after it.
            beside = asyncio.ensure_future(stub.Append(request(session, "c", request_id="q")))
            other.commit()
            error, done = await asyncio.gather(taken, beside)
            assert error.reason == "REQUEST_CONTENT_CHANGED"
            assert done.positions.first == 2
            assert [text for text, *_ in await log_of(session)] == ["a", "c"]


@pytest.mark.prove
@pytest.mark.parametrize(
    "point",
    [
        "append.group:commit",
        "append.group:committed",
        "append.fast:committed",
        "append:reply",
    ],
)
async def test_a_server_that_is_killed_on_the_way_leaves_nothing_lost_or_twice(
    url: str, folder: Path, point: str
) -> None:
    path = folder / "switches"
    switches = Switches(path)
    with api(url, **environment(path)) as (_, address):
        async with palimpsest.connect(address) as client:
            session = await client.create_session("s")
            await session.append("before")
            # A small one is now written on a guess, in a single round trip.
            switches.set(point, Action.KILL)
            many = 20 if "fast" not in point else 1
            with pytest.raises(palimpsest.Unavailable) as caught:
                await session.append(["now"] * many, request_id="r", timeout=0.1)
            assert caught.value.metadata["request_id"] == "r"
    assert switches.counts(point).failed == 1
    switches.close()
    with api(url) as (_, address):
        async with palimpsest.connect(address) as client:
            session = client.session("s")
            ack = await session.append(["now"] * many, request_id="r")
            again = await session.append(["now"] * many, request_id="r")
            assert again == ack
            texts = [text for text, *_ in await log_of(session)]
    assert texts.count("now") == many
    assert texts[ack.positions.first - 1 : ack.positions.last] == ["now"] * many
