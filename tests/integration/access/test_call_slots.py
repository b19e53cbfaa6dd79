"""Calls that run at once, counted over several servers by Redis."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from uuid import UUID, uuid4

import pytest
from redis.asyncio import Redis

from service.domain.access.quotas import QuotaName
from service.domain.values.errors import Exhausted
from service.usecases.access.call_slots import CallSlots
from storage.access.shared_slots import SharedSlots
from storage.engine.redis_link import RedisLink
from tests.support.harness import Servers

NAME = QuotaName.CONCURRENT_STREAMS
LIMIT = 3
Serve = Callable[..., CallSlots]


@pytest.fixture
async def serve(servers: Servers) -> AsyncIterator[Serve]:
    """Returns what makes the slots of one more server."""
    link = RedisLink(servers.valkey.url, timeout_seconds=10)

    def one(*, lease_seconds: float = 60) -> CallSlots:
        return CallSlots(SharedSlots(link, uuid4().hex, lease_seconds=lease_seconds))

    yield one
    await link.close()


async def admitted(slots: CallSlots, tenant: UUID, limit: int = LIMIT) -> bool:
    """Returns whether a call is admitted that ends at once."""
    try:
        async with slots.slot(tenant, NAME, limit):
            return True
    except Exhausted as error:
        assert error.metadata == {"quota": NAME.value, "limit": str(limit)}
        return False


async def until_admitted(slots: CallSlots, tenant: UUID) -> None:
    while not await admitted(slots, tenant):
        await asyncio.sleep(0.01)


async def test_calls_of_all_servers_count_together(serve: Serve) -> None:
    one, two, tenant = serve(), serve(), uuid4()
    async with AsyncExitStack() as calls:
        await calls.enter_async_context(one.slot(tenant, NAME, LIMIT))
        await calls.enter_async_context(two.slot(tenant, NAME, LIMIT))
        async with one.slot(tenant, NAME, LIMIT):
            assert not await admitted(one, tenant)
            assert not await admitted(two, tenant)
            assert await admitted(two, uuid4())
            assert await admitted(two, tenant, 0), "it has no limit"
        await until_admitted(two, tenant)
    while one._calls or two._calls:
        await asyncio.sleep(0.01)


async def test_no_more_are_admitted_at_one_moment(serve: Serve) -> None:
    servers, tenant, ended = [serve(), serve()], uuid4(), asyncio.Event()
    running = 0

    async def call(slots: CallSlots) -> bool:
        nonlocal running
        try:
            async with slots.slot(tenant, NAME, LIMIT):
                running += 1
                await ended.wait()
                return True
        except Exhausted:
            return False

    calls = [asyncio.create_task(call(servers[n % 2])) for n in range(20)]
    while sum(one.done() for one in calls) < len(calls) - LIMIT:
        await asyncio.sleep(0.01)
    assert running == LIMIT
    # What is cancelled gives its slot back.
    for one in calls:
        one.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    await until_admitted(servers[0], tenant)


async def test_calls_of_a_killed_server_are_forgotten(serve: Serve) -> None:
    killed, other, tenant = serve(lease_seconds=0.5), serve(), uuid4()
    async with AsyncExitStack() as calls:
        for _ in range(LIMIT):
            await calls.enter_async_context(killed.slot(tenant, NAME, LIMIT))
        # On a busy machine a lease may have ended already.
        while await admitted(other, tenant):
            await killed.renew()
        # It renews no more.
        await until_admitted(other, tenant)
        # It only was slow, and is back: what it has counts again.
        while await admitted(other, tenant):
            await killed.renew()


async def test_counts_that_redis_lost_are_reported_again(serve: Serve, servers: Servers) -> None:
    one, two, tenant = serve(), serve(), uuid4()
    async with AsyncExitStack() as calls:
        for _ in range(LIMIT):
            await calls.enter_async_context(one.slot(tenant, NAME, LIMIT))
        async with Redis.from_url(servers.valkey.url) as redis:
            (key,) = await redis.keys(f"*{tenant}*")
            assert key == f"palimpsest:slots:{{{tenant}}}:{NAME.value}".encode()
            assert 0 < await redis.pttl(key) <= 60_000
            await redis.delete(key)
        await one.renew()
        assert not await admitted(two, tenant)


async def test_without_redis_each_server_counts_its_own() -> None:
    tenant = uuid4()
    one, two = [CallSlots(SharedSlots(None, name, lease_seconds=1)) for name in ("one", "two")]
    async with one.slot(tenant, NAME, 1):
        assert not await admitted(one, tenant, 1)
        assert await admitted(two, tenant, 1)
    assert await admitted(one, tenant, 1)


async def test_a_call_that_is_cancelled_while_it_asks_leaves_no_slot(serve: Serve) -> None:
    one, two, tenant = serve(), serve(), uuid4()
    asking = asyncio.create_task(admitted(one, tenant, 1))
    # It has sent its count, or is about to.
    await asyncio.sleep(0)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    await until_admitted(two, tenant)
    await until_admitted(one, tenant)
