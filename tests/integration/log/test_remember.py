"""`session.remember` on a real server: the first call of a stranger, ids, waiting, recalling."""

from typing import Any
from uuid import uuid4

import pytest

import palimpsest
from palimpsest import sync

SCHEMA = "class Notes:\n    facts: list[str]\n"
MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "You are kind."},
    {"role": "user", "content": "May I eat this?", "name": "alice"},
    {
        "role": "assistant",
        "content": "I look it up.",
        "tool_calls": [
            {
                "id": "c1",
                "type": "function",
                "function": {"name": "look_up", "arguments": '{"dish": "satay"}'},
            }
        ],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "It has peanuts."},
    {"role": "assistant", "content": "No: it has peanuts."},
]


@pytest.fixture
def stranger(client: palimpsest.Client) -> palimpsest.Session:
    """Returns a session that does not exist."""
    return client.session(f"remembering-{uuid4().hex}")


async def contents(session: palimpsest.Session) -> list[str]:
    return [
        chunk.text or f"{chunk.thought}|{chunk.action}|{chunk.observation}"
        async for chunk in session.chunks()
    ]


async def test_a_strangers_first_conversation_is_stored(stranger: palimpsest.Session) -> None:
    found = await stranger.remember(MESSAGES, thread="lunch")
    assert found.positions == palimpsest.PositionRange(first=1, last=3)
    assert (found.chunks, found.skipped) == (3, 1)
    assert await contents(stranger) == [
        "May I eat this?",
        'I look it up.|look_up({"dish": "satay"})|It has peanuts.',
        "No: it has peanuts.",
    ]
    first = await stranger.chunk(1)
    assert (first.role, first.source, first.thread) == ("user", "alice", "lunch")


async def test_the_same_under_one_id_is_stored_once(stranger: palimpsest.Session) -> None:
    turns = [f"turn {number}" for number in range(300)]
    first = await stranger.remember(turns, request_id="turn-1")
    assert await stranger.remember(turns, request_id="turn-1") == first
    with pytest.raises(palimpsest.AlreadyExists) as caught:
        await stranger.remember("other", request_id="turn-1")
    assert caught.value.reason == "REQUEST_CONTENT_CHANGED"
    await stranger.remember("ok")
    await stranger.remember("ok")
    assert await contents(stranger) == [*turns, "ok", "ok"]


async def test_waiting_ends_when_a_memory_has_read_it(stranger: palimpsest.Session) -> None:
    await stranger.create(exist_ok=True)
    memory = await stranger.create_memory("notes", SCHEMA, linger=600)
    found = await stranger.remember("The museum is closed on Mondays.", wait=True, timeout=300)
    assert found.positions is not None
    assert (await memory.get()).applied_position == found.positions.last


async def test_a_wait_for_a_memory_that_is_held_says_that_all_is_stored(
    stranger: palimpsest.Session,
) -> None:
    await stranger.create(exist_ok=True)
    await stranger.create_memory("notes", SCHEMA)
    await stranger.set_budget("total", limit_tokens=1)
    with pytest.raises(palimpsest.ResourceExhausted, match="Everything is stored all the same"):
        await stranger.remember("x", wait=True, timeout=300)
    assert await contents(stranger) == ["x"]


async def test_what_is_remembered_is_recalled_at_once(stranger: palimpsest.Session) -> None:
    assert not await stranger.recall("May I eat this?")
    kept = await stranger.remember(MESSAGES, thread="lunch")
    block = await stranger.recall([{"role": "user", "content": "Has it peanuts?"}], tokens=800)
    assert "It has peanuts." in str(block)
    assert block.positions == (1, 2, 3)
    assert block.read_point.applied_position == 3
    later = await stranger.recall("peanuts", after=kept.read_token, excluded_threads=["lunch"])
    assert later.positions == ()


def test_without_await_it_is_the_same(address: str) -> None:
    with sync.connect(address) as client:
        session = client.session(f"remembering-{uuid4().hex}")
        session.remember(MESSAGES, wait=True, timeout=300)
        assert "It has peanuts." in str(session.recall("peanuts"))
