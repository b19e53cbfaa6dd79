"""Greetings and thanks make no step of their own: they wait for something of substance."""

from typing import Any

import pytest

from service.domain.log.chunks import Chunk, ChunkKind
from service.domain.prism.spec import SERVICE_LINGER_MS
from service.domain.values.tenancy import DEFAULT_TENANT
from storage.engine.database import Database, Transaction
from storage.log import sessions
from storage.memories import flushing
from tests.integration.support.scripted import (
    CONFIG,
    ITEM,
    KEY,
    MEMORY,
    Script,
    make,
    prism_method,
    read,
)
from tests.integration.support.writing import append_chunks

SERVICE: dict[str, Any] = {"chunk_tokens": 1000, "linger_ms": SERVICE_LINGER_MS}
#: Longer than any test.
SMALL = CONFIG.model_copy(
    update={
        "message_linger_seconds": 1000.0,
        "small_talk_tokens": 24,
        "small_talk_linger_seconds": 3000.0,
    }
)
FACT = (
    "We have decided to move the office to Bern in May, since the lease of the old one ends"
    " then and my sister has found us two floors beside the station."
)


async def say(database: Database, *texts: str, first: int) -> None:
    chunks = [Chunk(kind=ChunkKind.MESSAGE, role="user", text=text) for text in texts]
    await append_chunks(database, "s", chunks, first=first)


async def row(database: Database) -> tuple[Any, ...]:
    """Returns whether the memory is ready, rests, and is ready so long after its first message."""
    async with database.transaction(DEFAULT_TENANT) as tx:
        found = await tx.fetch(
            "SELECT ready_at <= now(), resting, extract(epoch FROM ready_at"
            " - (SELECT min(created_at) FROM chunk))::float8 FROM memory WHERE memory_id = %s",
            (MEMORY,),
        )
    return tuple(found[0])


async def test_small_talk_rests_until_more_comes(database: Database) -> None:
    await make(database, [], **SERVICE)
    script = Script()
    works = prism_method(database, script, SMALL)
    await say(database, "hi", "hello!", first=1)
    assert await works.drain(ITEM) is None, "no worker looks before something comes"
    assert await row(database) == (False, True, 3000.0)
    # Each message wakes it, and more small talk lets it rest again, to the same time.
    await say(database, "how are you?", first=3)
    assert (await row(database))[:2] == (True, False)
    assert await works.drain(ITEM) is None
    assert await row(database) == (False, True, 3000.0)
    assert script.asked == []
    # A fact waits for its reply as ever.
    await say(database, FACT, first=4)
    assert await works.drain(ITEM) == 250.0
    assert (await row(database))[1] is False
    assert script.asked == []


async def test_small_talk_shares_the_step_of_a_fact(database: Database) -> None:
    await make(database, [], **SERVICE)
    script = Script()
    at_once = SMALL.model_copy(update={"message_linger_seconds": 0.001})
    works = prism_method(database, script, at_once)
    await say(database, "hi", "hello!", first=1)
    assert await works.drain(ITEM) is None
    await say(database, FACT, "thanks", first=3)
    assert await works.drain(ITEM) is None
    assert len(script.asked) == 1
    assert (await read(database)).applied_position == 4
    # "bye" belongs to nothing any more, and waits for the next conversation.
    await say(database, "bye", first=5)
    assert await works.drain(ITEM) is None
    assert len(script.asked) == 1


async def test_small_talk_alone_is_read_in_the_end(database: Database) -> None:
    await make(database, [], **SERVICE)
    script = Script()
    ended = SMALL.model_copy(
        update={"message_linger_seconds": 0.001, "small_talk_linger_seconds": 0.001}
    )
    await say(database, "hi", "hello!", "thanks", first=1)
    assert await prism_method(database, script, ended).drain(ITEM) is None
    assert len(script.asked) == 1
    assert (await read(database)).applied_position == 3


async def test_a_flush_and_a_waiting_read_end_its_wait(database: Database) -> None:
    await make(database, [], **SERVICE)
    works = prism_method(database, Script(), SMALL)
    for position, end in enumerate((flushing.flush, flushing.end_wait), start=1):
        await say(database, "hi", first=position)
        await works.drain(ITEM)
        assert (await row(database))[:2] == (False, True)
        async with database.transaction(DEFAULT_TENANT) as tx:
            assert await end(tx, KEY, MEMORY, position) == [MEMORY]
        assert (await row(database))[:2] == (True, False)
        assert await works.drain(ITEM) is None
        assert (await read(database)).applied_position == position


async def test_what_comes_while_a_worker_is_about_to_rest_is_not_missed(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make(database, [], **SERVICE)
    await say(database, "hi", first=1)
    locked_head, coming = sessions.locked_head, [FACT]

    async def after_an_append(tx: Transaction, key: Any) -> int | None:
        while coming:
            await say(database, coming.pop(), first=2)
        return await locked_head(tx, key)

    monkeypatch.setattr(sessions, "locked_head", after_an_append)
    works = prism_method(database, Script(), SMALL)
    assert await works.drain(ITEM) == 250.0, "it waits for the reply to the fact"
    assert (await row(database))[1] is False
