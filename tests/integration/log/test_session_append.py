"""`session.append`, and producers that collide: the user's errors, and the log."""

import asyncio
from typing import Any
from uuid import uuid4

import pytest

import palimpsest
from palimpsest import sync
from tests.support.cutting import cutting

SCHEMA = "class Notes:\n    facts: list[str]\n"


@pytest.fixture
async def session(client: palimpsest.Client) -> palimpsest.Session:
    return await client.create_session(f"appending-{uuid4().hex}")


async def texts(session: palimpsest.Session) -> list[str]:
    return [chunk.text async for chunk in session.chunks()]


async def _append_all(producer: palimpsest.Producer, texts: list[str]) -> None:
    for text in texts:
        await producer.append(text)
    await producer.flush()


async def test_a_text_and_messages_are_durable_when_it_returns(session: Any) -> None:
    one = await session.append("hello", metadata={"channel": "web"})
    two = await session.append(
        [{"role": "user", "content": "When?"}, {"role": "assistant", "content": "On Monday."}]
    )
    at = [(sent.positions.first, sent.positions.last) for sent in (one, two)]
    assert at == [(1, 1), (2, 3)]
    assert two.read_token
    assert two.request_id != one.request_id
    found = [chunk async for chunk in session.chunks()]
    assert [(chunk.kind, chunk.role, chunk.text) for chunk in found] == [
        ("text", "", "hello"),
        ("message", "user", "When?"),
        ("message", "assistant", "On Monday."),
    ]
    assert found[0].metadata == {"channel": "web"}


async def test_an_id_of_the_clients_is_stored_once_for_ever(session: Any) -> None:
    first = await session.append("order 17 was paid", request_id="order-17")
    assert await session.append("order 17 was paid", request_id="order-17") == first
    with pytest.raises(palimpsest.AlreadyExists) as caught:
        await session.append("order 17 was cancelled", request_id="order-17")
    assert caught.value.reason == "REQUEST_CONTENT_CHANGED"
    assert await texts(session) == ["order 17 was paid"]


async def test_a_lost_reply_is_asked_for_again_under_the_same_id(address: str) -> None:
    async with cutting(address) as proxy, palimpsest.connect(proxy.address) as client:
        session = await client.create_session(f"cut-{uuid4().hex}")

        async def cut() -> None:
            for _ in range(10):
                await asyncio.sleep(0)
                proxy.cut()

        sent = [f"text {number}" for number in range(20)]
        for text in sent:
            await asyncio.gather(session.append(text), cut())
        assert await texts(session) == sent


async def test_tasks_append_side_by_side(session: Any) -> None:
    acks = await asyncio.gather(*(session.append([f"{n} a", f"{n} b"]) for n in range(40)))
    found = await texts(session)
    assert len(found) == 80
    for number, ack in enumerate(acks):
        own = found[ack.positions.first - 1 : ack.positions.last]
        assert own == [f"{number} a", f"{number} b"]


async def test_an_expected_head_keeps_others_out(session: Any) -> None:
    await session.append("a", expected_head=0)
    with pytest.raises(palimpsest.Aborted) as caught:
        await session.append("b", expected_head=0)
    assert caught.value.reason == "HEAD_MISMATCH"


async def test_too_much_for_one_call_is_refused_with_the_way_out(session: Any) -> None:
    for items in (["x"] * 257, ["x" * 200_000] * 22):
        with pytest.raises(palimpsest.InvalidArgument, match="producer") as caught:
            await session.append(items)
        assert caught.value.reason == "BATCH_TOO_LARGE"
    with pytest.raises(ValueError, match="request_id"):
        await session.append("x", request_id="")
    assert await texts(session) == []


def test_the_client_without_await_appends_as_well(address: str) -> None:
    with sync.Client(address) as client:
        session = client.create_session(f"sync-{uuid4().hex}")
        first = session.append("a", request_id="r")
        assert session.append("a", request_id="r") == first
        assert session.append(
            ["b", {"role": "user", "content": "c"}]
        ).positions == palimpsest.PositionRange(first=2, last=3)
        memory = session.create_memory("notes", SCHEMA, exist_ok=True)
        assert session.create_memory("notes", SCHEMA, exist_ok=True).id == memory.id


async def test_two_live_producers_of_one_id_get_a_plain_error(session: Any) -> None:
    # Neither knows of the other: both open before either has sent anything.
    one, two = session.producer("app"), session.producer("app")
    async with one:
        await two.__aenter__()
        await one.append("from one")
        await one.flush()
        await two.append("from two")
        with pytest.raises(
            palimpsest.AlreadyExists, match="another process uses this pro"
        ) as caught:
            await two.flush()
        await two.__aexit__(None, None, None)
    assert caught.value.reason == "SEQUENCE_CONTENT_CHANGED"
    assert str(caught.value).startswith("append 1 was refused: ")
    assert "higher epoch" in str(caught.value)
    assert await texts(session) == ["from one"]


async def test_a_producer_that_returns_after_another_one_loses_nothing_unreported(
    address: str,
) -> None:
    async with (
        cutting(address) as proxy,
        palimpsest.connect(proxy.address) as cut_client,
        palimpsest.connect(address) as client,
    ):
        session = await client.create_session(f"back-{uuid4().hex}")
        first = cut_client.session(session.id).producer("app")
        await first.__aenter__()
        async with session.producer("app") as second:
            for number in range(5):
                await second.append(f"second {number}")
        proxy.cut()
        with pytest.raises(palimpsest.AlreadyExists, match="another process uses this producer id"):
            await _append_all(first, [f"first {number}" for number in range(3)])
        await first.__aexit__(None, None, None)
        assert await texts(session) == [f"second {number}" for number in range(5)]


async def test_a_bad_append_harms_no_other(session: Any) -> None:
    async with session.producer("app") as producer:
        await producer.append("one")
        with pytest.raises(palimpsest.InvalidArgument, match="append 2: its text is empty"):
            await producer.append_message("user", "")
        await producer.append("two")
    assert await texts(session) == ["one", "two"]


async def test_what_only_the_service_refuses_is_named_and_raised_once(session: Any) -> None:
    async with session.producer("app") as producer:
        await producer.append("one")
        await producer.flush()
        await producer.append("x" * 300_000)
        with pytest.raises(palimpsest.InvalidArgument, match="append 2 was refused") as caught:
            await producer.flush()
        with pytest.raises(palimpsest.ProducerClosed, match="append 2 was refused"):
            await producer.append("three")
    assert caught.value.reason == "CHUNK_TOO_LARGE"
    assert "up to 1 is durable" in str(caught.value)
    assert await texts(session) == ["one"]


async def test_an_unseen_error_is_raised_at_the_end(session: Any) -> None:
    with pytest.raises(palimpsest.InvalidArgument, match="append 1 was refused"):
        async with session.producer("app") as producer:
            await producer.append("x" * 300_000)


async def test_making_what_is_there_is_no_error_if_it_is_the_same(session: Any) -> None:
    for _ in range(2):
        await session.create_memory("notes", SCHEMA, task="Keep facts.", exist_ok=True)
        await session.create_tree("book", segment_tokens=500, exist_ok=True)
        await session.create_state("run", task="Find the key.", period=5, exist_ok=True)
    # Written otherwise, and what is left to the service is not compared.
    spaced = "class Notes:\n\n    facts:  list[str]\n"
    await session.create_memory("notes", schema_source=spaced, exist_ok=True)
    with pytest.raises(palimpsest.AlreadyExists):
        await session.create_memory("notes", SCHEMA, task="Keep facts.")


async def test_making_what_is_there_otherwise_says_what_is_other(session: Any) -> None:
    await session.create_memory("notes", SCHEMA, task="Keep facts.", exist_ok=True)
    other = "class Notes:\n    facts: list[int]\n"
    for given, said in (
        ({"schema": other}, "its schema is another one"),
        ({"schema": SCHEMA, "task": "Other."}, "task is 'Keep facts.', not 'Other.'"),
        ({"schema": SCHEMA, "skip_failures": True}, "skip_failures is False, not True"),
    ):
        with pytest.raises(palimpsest.AlreadyExists, match=said) as caught:
            await session.create_memory("notes", exist_ok=True, **given)
        assert caught.value.reason == "MEMORY_EXISTS"
        assert "session.memory" in str(caught.value)
    with pytest.raises(palimpsest.AlreadyExists, match="is a prism memory, not a tree memory"):
        await session.create_tree("notes", exist_ok=True)
