"""Redis flushed or gone in the middle of a run: what is stored is the same to the byte."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from redis.asyncio import Redis
from sqlalchemy import text

from service.domain.prism.spec import PrismSpec
from service.domain.values.tenancy import DEFAULT_TENANT
from service.llm.providers.facts import ModelFacts
from service.llm.providers.prices import Prices
from service.local.valkey import ValkeyServer
from storage.calls.prefix_index import RedisPrefixIndex
from storage.engine.database import Database
from tests.integration.support.scripted import CONFIG, ITEM, SPEC, Script, make
from tests.support.gateways import gateway
from tests.support.harness import Servers
from tests.support.step_engines import step_engine

STEPS = 8
#: All that a memory is, without the times at which it came about.
STORED = (
    "SELECT revision, from_position, to_position, kind, digest FROM revision",
    "SELECT revision, ordinal, path, op, value FROM amendment",
    "SELECT revision, value FROM prism_base",
    "SELECT key, purpose, template, model, reply FROM call",
)

Disturb = Callable[[Redis, int], Awaitable[None]]


@pytest.fixture
async def databases(servers: Servers) -> AsyncIterator[list[Database]]:
    made = [Database.connect(servers.new_database(), pool_size=5, name="test") for _ in range(2)]
    yield made
    for one in made:
        await one.close()


async def stored(database: Database) -> list[list[Any]]:
    async with database.transaction(DEFAULT_TENANT) as tx:
        found = [await tx.fetch(text(query)) for query in STORED]
        return [sorted(tuple(row) for row in rows) for rows in found]


async def run(database: Database, redis_url: str, disturb: Disturb | None) -> list[list[Any]]:
    await make(database, [f"chunk {number}" for number in range(STEPS)])
    index = RedisPrefixIndex(redis_url, timeout_seconds=60.0)
    redis = Redis.from_url(redis_url)
    script = Script()

    async def meanwhile() -> None:
        if disturb is not None:
            await disturb(redis, len(script.asked))

    script.meanwhile = meanwhile
    calls = gateway(script, database, index=index)
    facts = ModelFacts(window_tokens=32_768, count=len)
    try:
        prices = Prices(CONFIG).of(SPEC.model)
        await step_engine(PrismSpec.kind, database, calls, CONFIG, facts, prices).drain(ITEM)
    finally:
        await index.close()
        await redis.aclose()
    assert len(script.asked) == STEPS
    return await stored(database)


async def test_flushed_in_the_middle_of_a_run_it_changes_no_stored_byte(
    databases: list[Database], servers: Servers
) -> None:
    flushed = 0

    async def flush(redis: Redis, step: int) -> None:
        nonlocal flushed
        if step % 3 == 2:
            assert await redis.dbsize(), "there was something to forget"
            await redis.flushall()
            flushed += 1

    quiet = await run(databases[0], servers.valkey.url, None)
    assert await run(databases[1], servers.valkey.url, flush) == quiet
    assert flushed == 3


async def test_stopped_in_the_middle_of_a_run_it_changes_no_stored_byte(
    databases: list[Database], servers: Servers, folder: Any
) -> None:
    quiet = await run(databases[0], servers.valkey.url, None)
    with ValkeyServer(folder / "valkey") as valkey:

        async def stop(_: Redis, step: int) -> None:
            if step == 3:
                valkey.stop()

        assert await run(databases[1], valkey.url, stop) == quiet
