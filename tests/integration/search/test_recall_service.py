"""Recall over gRPC; no worker, no embedding model."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any
from uuid import uuid4

import pytest
from google.protobuf.timestamp_pb2 import Timestamp

import palimpsest
from palimpsest import Edit
from palimpsest.v1 import chunks_pb2, common_pb2, session_service_pb2, session_service_pb2_grpc
from service.domain.prompting.tokens import estimate_tokens
from storage.search.recalling import LOOKED_CHUNKS
from tests.support.harness import Servers, api

SCHEMA = """
class Notes:
    food: list[str]
    people: dict[str, str]
"""
MEMORY, CHUNKS, UNREAD = (
    session_service_pb2.RECALL_SECTION_MEMORY,
    session_service_pb2.RECALL_SECTION_CHUNKS,
    session_service_pb2.RECALL_SECTION_UNREAD,
)


@pytest.fixture(scope="module")
def address(servers: Servers) -> Iterator[str]:
    with api(servers.new_database()) as (_, address):
        yield address


@pytest.fixture(scope="module")
async def client(address: str) -> AsyncIterator[palimpsest.Client]:
    async with palimpsest.connect(address) as client:
        yield client


@pytest.fixture
async def session(client: palimpsest.Client) -> palimpsest.Session:
    return await client.create_session(f"alice-{uuid4().hex[:8]}")


async def say(session: palimpsest.Session, *messages: tuple[str, str], thread: str = "") -> None:
    async with session.producer(uuid4().hex) as producer:
        for role, text in messages:
            await producer.append_message(role, text, thread=thread)
        await producer.flush()


async def remember(session: palimpsest.Session, name: str = "default") -> palimpsest.Memory:
    memory = await session.create_memory(name, SCHEMA)
    await memory.edit(
        [
            Edit.add("$.food", ["Alice is vegetarian.", "Alice must not eat nuts."]),
            Edit.add("$.people", {"Ben": "owns a boat"}),
        ]
    )
    return memory


async def recall(
    client: palimpsest.Client, session: palimpsest.Session, query: str = "", **others: Any
) -> session_service_pb2.RecallResponse:
    timeout = others.pop("timeout", 10)
    request = session_service_pb2.RecallRequest(session=session.id, query=query, **others)
    stub = session_service_pb2_grpc.SessionServiceStub(client.channel)
    found: session_service_pb2.RecallResponse = await client.call(
        stub.Recall, request, timeout=timeout
    )
    return found


def positions(found: session_service_pb2.RecallResponse, section: int = CHUNKS) -> list[int]:
    return [one.positions.first for one in found.parts if one.section == section]


FILLER = [("user", f"Today the weather is fine, day {day}.") for day in range(40)]


async def test_a_block_has_memory_chunks_and_what_is_unread(
    client: palimpsest.Client, session: palimpsest.Session
) -> None:
    await remember(session)
    await say(session, ("user", "At the harbour I saw Ben."), *FILLER, ("user", "Good night!"))
    found = await recall(client, session, "What happened at the harbour?", max_tokens=200)
    lines = found.text.splitlines()
    assert lines[0] == "# Memory default"
    assert "- food: Alice must not eat nuts." in lines
    assert "- people / Ben: owns a boat" in lines
    assert lines.index("[1] user: At the harbour I saw Ben.") > lines.index("# Earlier")
    assert lines.index("[42] user: Good night!") > lines.index("# Latest")
    assert found.tokens == estimate_tokens(found.text) <= 200
    assert positions(found) == [1]
    assert positions(found, UNREAD)[-1] == 42
    assert [(one.memory, one.revision, one.applied_position) for one in found.memories] == [
        ("default", 1, 0)
    ]
    assert found.mode == session_service_pb2.SEARCH_MODE_WORDS
    assert found.read_point.applied_position == 42
    assert found.index.head == 42
    best = next(one for one in found.parts if one.section == CHUNKS)
    assert best.score > 0
    assert not best.HasField("characters")


async def test_parts_of_a_memory_say_where_they_are_from(
    client: palimpsest.Client, session: palimpsest.Session
) -> None:
    memory = await remember(session)
    await memory.edit([Edit.update("$.people['Ben']", "sold the boat")])
    found = await recall(client, session, "boat")
    parts = [(one.path, one.text, one.revision) for one in found.parts]
    assert parts == [
        ("$['food'][0]", "food: Alice is vegetarian.", 1),
        ("$['food'][1]", "food: Alice must not eat nuts.", 1),
        ("$['people']['Ben']", "people / Ben: sold the boat", 2),
    ]
    assert not found.parts[0].HasField("positions")


async def test_a_chunk_that_the_memory_repeats_is_left_out(
    client: palimpsest.Client, session: palimpsest.Session
) -> None:
    await remember(session)
    await say(session, ("user", "Alice must not eat nuts."), ("user", "Nuts are cheap."), *FILLER)
    found = await recall(client, session, "nuts", max_tokens=200)
    assert found.text.count("Alice must not eat nuts.") == 1
    assert positions(found) == [2]


async def test_of_a_large_memory_the_best_entries_are_recalled(
    client: palimpsest.Client, session: palimpsest.Session
) -> None:
    memory = await remember(session)
    facts = [f"On day {day} the weather was fine and nothing else is known." for day in range(300)]
    await memory.edit([Edit.update("$.food", facts)])
    await memory.edit([Edit.add("$.people['Eve']", "keeps the lighthouse")])
    await memory.edit([Edit.update("$.food[299]", "It rained on the last day.")])
    found = await recall(client, session, "Who keeps the lighthouse?", max_tokens=200)
    assert "- people / Eve: keeps the lighthouse" in found.text
    # What is left of the share has what was written last.
    assert "- food: It rained on the last day." in found.text
    best = max(found.parts, key=lambda one: one.score)
    assert best.path == "$['people']['Eve']"
    assert estimate_tokens(found.text) <= 200


async def test_the_budget_is_kept_however_small(
    client: palimpsest.Client, session: palimpsest.Session
) -> None:
    await remember(session)
    await say(session, ("user", "x" * 3000), *FILLER)
    for tokens in (1, 10, 40, 100, 1000):
        found = await recall(client, session, "weather", max_tokens=tokens)
        assert estimate_tokens(found.text) <= tokens
    assert estimate_tokens((await recall(client, session, "weather")).text) <= 1000


async def test_without_a_query_the_newest_messages_are_it(
    client: palimpsest.Client, session: palimpsest.Session
) -> None:
    await say(session, ("user", "The boat is called Gull."), *FILLER, ("user", "And the boat?"))
    found = await recall(client, session, max_tokens=100)
    assert positions(found)[0] == 1
    assert positions(found, UNREAD)[-1] == 42


async def test_an_empty_session_is_an_empty_text(
    client: palimpsest.Client, session: palimpsest.Session
) -> None:
    found = await recall(client, session, "what may she eat?")
    assert (found.text, found.tokens, list(found.parts)) == ("", 0, [])
    assert found.read_point.read_token


async def test_sections_that_are_not_wanted_are_left_out(
    client: palimpsest.Client, session: palimpsest.Session
) -> None:
    await remember(session)
    await say(session, ("user", "At the harbour I saw Ben."), *FILLER)
    for wanted in (MEMORY, CHUNKS):
        found = await recall(client, session, "harbour Ben", max_tokens=120, sections=[wanted])
        assert {one.section for one in found.parts} == {wanted}
    found = await recall(client, session, "harbour Ben", sections=[UNREAD])
    assert {one.section for one in found.parts} == {UNREAD}
    assert found.mode == session_service_pb2.SEARCH_MODE_UNSPECIFIED
    assert not found.HasField("index")


async def test_filters_apply_to_chunks_and_their_neighbours(
    client: palimpsest.Client, session: palimpsest.Session
) -> None:
    await say(session, ("user", "Shall we meet at the harbour?"), thread="a")
    await say(session, ("user", "The harbour is closed."), thread="b")
    await say(session, ("assistant", "Yes, at nine."), thread="a")
    only = chunks_pb2.ChunkFilter(threads=["a"])
    found = await recall(client, session, "harbour", filter=only)
    assert sorted(positions(found) + positions(found, UNREAD)) == [1, 3]
    others = chunks_pb2.ChunkFilter(excluded_threads=["a"])
    found = await recall(client, session, "harbour", filter=others)
    assert positions(found) + positions(found, UNREAD) == [2]
    early = chunks_pb2.ChunkFilter(positions=common_pb2.PositionRange(last=1))
    found = await recall(client, session, "harbour", filter=early)
    assert positions(found) + positions(found, UNREAD) == [1]


async def test_named_memories_are_recalled_and_default_comes_first(
    client: palimpsest.Client, session: palimpsest.Session
) -> None:
    await remember(session, "notes")
    await remember(session, "diary")
    both = await recall(client, session, "Ben")
    assert [one.memory for one in both.memories] == ["diary", "notes"]
    assert "# Memory diary" in both.text
    assert "# Memory notes" in both.text
    one = await recall(client, session, "Ben", memories=["notes"])
    assert {part.memory for part in one.parts} == {"notes"}
    await remember(session)
    assert [each.memory for each in (await recall(client, session, "Ben")).memories] == ["default"]


async def test_a_token_waits_for_the_memory(
    client: palimpsest.Client, session: palimpsest.Session
) -> None:
    await remember(session)
    await say(session, ("user", "I moved to Hull."))
    token = (await recall(client, session)).read_point.read_token
    fresh = common_pb2.ReadConsistency(at_least=token)
    with pytest.raises(palimpsest.PalimpsestError) as late:
        await recall(client, session, consistency=fresh, timeout=1)
    assert late.value.reason == "NOT_APPLIED_IN_TIME"
    assert "I moved to Hull." in (await recall(client, session)).text


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 100_001}, "max_tokens"),
        ({"query": "a\0b"}, "query"),
        ({"query": "x" * 65_537}, "query"),
        ({"sections": [0]}, "sections"),
        ({"sections": [MEMORY, MEMORY]}, "sections"),
        ({"memories": ["a/b"]}, "memories"),
        (
            {
                "filter": chunks_pb2.ChunkFilter(
                    occurred=common_pb2.TimeRange(
                        start=Timestamp(seconds=9), end=Timestamp(seconds=1)
                    )
                )
            },
            "filter",
        ),
    ],
)
async def test_bad_requests(
    client: palimpsest.Client, session: palimpsest.Session, wrong: dict[str, Any], field: str
) -> None:
    with pytest.raises(palimpsest.InvalidArgument) as refused:
        await recall(client, session, **wrong)
    assert field in str(refused.value)


async def test_what_is_not_there_is_not_found(
    client: palimpsest.Client, session: palimpsest.Session
) -> None:
    with pytest.raises(palimpsest.NotFound) as nobody:
        await recall(client, client.session("nobody"), "Ben")
    assert nobody.value.reason == "SESSION_NOT_FOUND"
    for sections in ([], [CHUNKS]):
        with pytest.raises(palimpsest.NotFound) as none:
            await recall(client, session, "Ben", memories=["diary"], sections=sections)
        assert none.value.reason == "MEMORY_NOT_FOUND"


async def test_long_chunks_keep_out_no_others(
    client: palimpsest.Client, session: palimpsest.Session
) -> None:
    paste = "So it goes. " * 15_000
    harbour = [("user", f"The harbour has {count} boats.") for count in ("two", "three", "four")]
    pasted = [("user", f"{'harbour market ' * 40}{paste}") for _ in harbour]
    both = [one for pair in zip(pasted, harbour, strict=True) for one in pair]
    await say(session, *both, *FILLER)
    found = await recall(client, session, "harbour market", max_tokens=400, sections=[CHUNKS])
    assert {2, 4, 6} < set(positions(found))


async def test_recalls_and_appends_at_once(
    client: palimpsest.Client, session: palimpsest.Session
) -> None:
    async def talk() -> None:
        for at in range(20):
            await say(session, ("user", f"The harbour, part {at}."))

    talking = asyncio.create_task(talk())
    seen = 0
    while not talking.done():
        found = await recall(client, session, "harbour")
        there = sorted(positions(found) + positions(found, UNREAD))
        assert there == list(range(1, found.read_point.applied_position + 1))
        assert found.read_point.applied_position >= seen
        seen = found.read_point.applied_position
    await talking


async def test_the_newest_chunks_of_a_thread_are_found_however_old(
    client: palimpsest.Client, session: palimpsest.Session
) -> None:
    await say(session, ("user", "Let us sail on Friday."), thread="old")
    async with session.producer("filler") as producer:
        for day in range(LOOKED_CHUNKS + 10):
            await producer.append_message("user", f"Day {day}.", thread="new")
        await producer.flush()
    only = chunks_pb2.ChunkFilter(threads=["old"])
    found = await recall(client, session, filter=only, sections=[UNREAD])
    assert positions(found, UNREAD) == [1]
