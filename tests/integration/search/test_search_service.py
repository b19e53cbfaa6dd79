"""Searching over gRPC, by the client and by the command line; no worker, no embedding model."""

import json
import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from grpc_health.v1 import health_pb2, health_pb2_grpc

import palimpsest
from palimpsest import sync
from palimpsest.v1 import chunks_pb2, session_service_pb2, session_service_pb2_grpc
from palimpsest.v1.common_pb2 import TimeRange
from storage.search.words import TAIL_CHUNKS
from tests.support import forking
from tests.support.harness import Servers, api

STORY = (
    "The keeper climbed the tower. A storm put the lamp out.",
    "Grass grew on the hill.",
    "He lit the lamp again with a match.",
)


@pytest.fixture(scope="module")
def address(servers: Servers) -> Iterator[str]:
    with api(servers.new_database()) as (_, address):
        yield address


@pytest.fixture(scope="module")
async def client(address: str) -> AsyncIterator[palimpsest.Client]:
    async with palimpsest.connect(address) as client:
        yield client


@pytest.fixture(scope="module")
async def session(client: palimpsest.Client) -> palimpsest.Session:
    session = await client.create_session("lighthouse")
    async with session.producer("p") as producer:
        for text in STORY:
            await producer.append(text, metadata={"book": "a"})
        await producer.append_message("ann", "Where is the lamp?", metadata={"book": "b"})
        await producer.append_step(observation="dark", thought="light the lamp", action="strike")
        await producer.flush()
    return session


def positions(result: palimpsest.SearchResult) -> list[int]:
    return [one.chunk.position for one in result.results]


async def test_what_was_acked_is_found_at_once(session: palimpsest.Session) -> None:
    result = await session.search("storm lamp")
    assert result.mode == "words"
    assert positions(result)[0] == 1
    assert set(positions(result)) == {1, 3, 4, 5}
    first = result.results[0]
    assert first.excerpt == "A storm put the lamp out."
    assert (first.rank, first.words_rank, first.vectors_rank) == (1, 1, None)
    assert first.words_score is not None
    assert first.vectors_score is None
    assert first.chunk.text == STORY[0]
    assert result.index.head == 5
    assert "PALIMPSEST_EMBEDDING_MODEL" in result.index.vectors_unavailable
    assert await session.search_index() == result.index


async def test_what_is_left_out_of_a_long_tail_is_reported(
    client: palimpsest.Client, address: str
) -> None:
    session = await client.create_session("tail")
    async with session.producer("p") as producer:
        for number in range(TAIL_CHUNKS + 25):
            await producer.append(f"keeper {number}")
    result = await session.search("keeper 2024")
    assert positions(result)[0] == TAIL_CHUNKS + 25
    assert result.unread_chunks == 25
    assert (await session.search("keeper 7", to_position=TAIL_CHUNKS)).unread_chunks == 0
    done = command(address, "search", "keeper", "-s", "tail")
    assert "25 chunks have no words yet and were not searched" in done.stderr


async def test_the_text_of_each_kind_is_as_the_service_counts_it(
    session: palimpsest.Session,
) -> None:
    found = {one.chunk.kind: one for one in (await session.search("where light lamp")).results}
    assert found["message"].text == "ann: Where is the lamp?"
    assert found["message"].excerpt == "ann: Where is the lamp?"
    assert found["agent_step"].text == "Thought: light the lamp\nAction: strike\nObservation: dark"
    assert found["agent_step"].chunk.observed_first is False
    assert found["agent_step"].excerpt == "Thought: light the lamp"


async def test_a_step_that_observed_first_is_read_so(client: palimpsest.Client) -> None:
    session = await client.create_session("first")
    async with session.producer("p") as producer:
        await producer.append_step(observation="dim", action="open wick", observed_first=True)
        await producer.flush()
    (found,) = (await session.search("wick")).results
    assert found.chunk.observed_first is True
    assert found.text == "Observation: dim\nAction: open wick"


async def test_filters(session: palimpsest.Session) -> None:
    now = datetime.now(UTC)
    assert set(positions(await session.search("lamp", kinds=["message", "agent_step"]))) == {4, 5}
    assert set(positions(await session.search("lamp", metadata={"book": "a"}))) == {1, 3}
    assert positions(await session.search("lamp", from_position=2, to_position=3)) == [3]
    assert len(positions(await session.search("lamp", limit=1))) == 1
    assert positions(await session.search("lamp", until=now - timedelta(hours=1))) == []
    assert len(positions(await session.search("lamp", since=now - timedelta(hours=1)))) == 4


async def test_the_offline_model_orders_what_was_found(session: palimpsest.Session) -> None:
    plain = await session.search("lamp match")
    result = await session.search("lamp match", rerank=True, timeout=60)
    assert set(positions(result)) == set(positions(plain))
    assert positions(result)[0] == 3
    assert [one.rank for one in result.results] == [1, 2, 3, 4]
    usage = await session.usage()
    assert [line.purpose for line in usage.lines] == ["rerank"]


async def test_refusals(session: palimpsest.Session, client: palimpsest.Client) -> None:
    with pytest.raises(palimpsest.NotFound):
        await client.session("nobody").search("lamp")
    with pytest.raises(palimpsest.NotFound):
        await client.session("nobody").search_index()
    with pytest.raises(palimpsest.FailedPrecondition) as refused:
        await session.search("lamp", mode="vectors")
    assert refused.value.reason == "VECTORS_UNAVAILABLE"
    refused_there: list[dict[str, Any]] = [
        {"query": ""},
        {"query": "a\0b"},
        {"query": "x" * 8193},
        {"query": "x", "limit": -1},
        {"query": "x", "from_position": 3, "to_position": 2},
        {"query": "x", "metadata": {"a": "\0"}},
        {"query": "x", "metadata": {str(number): "" for number in range(17)}},
    ]
    for wrong in refused_there:
        with pytest.raises(palimpsest.InvalidArgument):
            await session.search(**wrong)
    refused_here: list[dict[str, Any]] = [
        {"mode": "both"},
        {"kinds": ["page"]},
        {"kinds": "text"},
        {"since": datetime(2026, 1, 1)},
        {"limit": 2**31},
    ]
    for wrong in refused_here:
        with pytest.raises(ValueError, match=next(iter(wrong))):
            await session.search("x", **wrong)
    stub = session_service_pb2_grpc.SessionServiceStub(client.channel)
    late = chunks_pb2.ChunkFilter(created=TimeRange(start=Timestamp(seconds=10**13)))
    request = session_service_pb2.SearchChunksRequest(session="lighthouse", query="x", filter=late)
    with pytest.raises(palimpsest.InvalidArgument, match="year 9999"):
        await client.call(stub.SearchChunks, request)


async def test_positions_beyond_any_log_find_nothing(session: palimpsest.Session) -> None:
    assert positions(await session.search("lamp", from_position=2**63 - 1)) == []
    assert len(positions(await session.search("lamp", to_position=2**63 - 1))) == 4


async def test_it_is_healthy(client: palimpsest.Client) -> None:
    health = health_pb2_grpc.HealthStub(client.channel)
    request = health_pb2.HealthCheckRequest(service="palimpsest.v1.SessionService")
    assert (await health.Check(request)).status == health_pb2.HealthCheckResponse.SERVING


async def test_the_same_without_await(session: palimpsest.Session, address: str) -> None:
    with sync.Client(address) as client:
        held = client.session("lighthouse")
        assert (
            held.search("lamp", limit=2).results == (await session.search("lamp", limit=2)).results
        )
        assert held.search_index().head == 5


def command(address: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    words = (*arguments, "--address", address)
    return forking.run(words, environment=os.environ, seconds=100)


async def test_the_command_line(session: palimpsest.Session, address: str) -> None:
    done = command(address, "search", "storm lamp", "-s", session.id, "--limit", "2")
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first == f"1. [1] {STORY[0]} (words 1)"
    assert second.startswith("2. [")
    assert "2 found by words among 5 chunks" in done.stderr
    options = ("--kind", "message", "--metadata", "book=b", "--from", "1", "--to", "5")
    times = ("--since", "2020-01-01", "--until", "2100-01-01T00:00Z")
    done = command(address, "search", "lamp", "-s", session.id, *options, *times, "--json")
    (chunk,) = json.loads(done.stdout)["results"]
    assert (chunk["position"], chunk["excerpt"]) == (4, "ann: Where is the lamp?")
    done = command(address, "session", "index", session.id)
    assert done.stdout.splitlines()[0] == "5 chunks, language english"
    done = command(address, "session", "index", session.id, "--json")
    assert json.loads(done.stdout)["head"] == 5


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (("--metadata", "book"), "--metadata: 'book' has no ="),
        (("--metadata", "a=1", "--metadata", "a=2"), "--metadata: 'a' has two values"),
        (("--since", "yesterday"), "--since: 'yesterday' is no time such as"),
        (("--from", "3", "--to", "2"), "filter.positions: first must not be greater than last"),
        (
            ("--since", "2027-01-02", "--until", "2027-01-01"),
            "filter.created: start must not be later than end",
        ),
        (("--mode", "vectors"), "no embedding model is configured"),
    ],
)
async def test_wrong_options_end_in_one_line(
    session: palimpsest.Session, address: str, wrong: tuple[str, ...], said: str
) -> None:
    done = command(address, "search", "lamp", "-s", session.id, *wrong)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert said in line
