"""Token buckets in Redis: one rate for all servers, by the clock of Redis."""

import os
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import UUID, uuid4

import pytest
from redis.asyncio import Redis

from service.domain.access.quotas import QuotaName
from service.local.valkey import ValkeyServer
from service.usecases.access.rate_limits import RateLimits
from storage.access.token_buckets import SharedBuckets
from storage.engine.redis_link import RedisLink
from tests.support.harness import Servers

RATE = 1000
NAME = QuotaName.REQUESTS_PER_SECOND


@pytest.fixture
async def buckets(servers: Servers) -> AsyncIterator[SharedBuckets]:
    link = RedisLink(servers.valkey.url, timeout_seconds=10)
    yield SharedBuckets(link)
    await link.close()


async def seconds(redis: Redis) -> float:
    whole, micro = await redis.time()
    return float(whole) + float(micro) / 1e6


async def take(buckets: SharedBuckets, tenant: UUID, needed: int, wanted: int = 0) -> int:
    found = await buckets.take(
        tenant, NAME.value, rate=RATE, needed=needed, wanted=max(wanted, needed)
    )
    assert found is not None
    assert (found[0] == 0) == (found[1] > 0)
    return found[0]


async def test_servers_get_no_more_than_the_rate_together(
    servers: Servers, buckets: SharedBuckets
) -> None:
    """Their own clocks differ by hours."""
    tenant = uuid4()
    limits = [RateLimits(buckets, clock=_ahead(hours)) for hours in (0, 5)]
    async with Redis.from_url(servers.valkey.url) as redis:
        began = await seconds(redis)
        passed = 0
        for turn in range(3 * RATE):
            passed += not await limits[turn % 2].take(tenant, NAME, rate=RATE, needed=1)
        spent = await seconds(redis) - began
    assert RATE <= passed <= RATE * (1 + spent) + 1


def _ahead(hours: int) -> Callable[[], float]:
    return lambda: time.monotonic() + 3600 * hours


async def test_a_take_gives_what_is_wanted_as_far_as_there_is(buckets: SharedBuckets) -> None:
    tenant = uuid4()
    assert await take(buckets, tenant, 1, 600) == 600
    assert 400 <= await take(buckets, tenant, 1, 600) <= 600
    assert await take(buckets, uuid4(), 5 * RATE) == 5 * RATE


async def test_what_is_owed_is_kept_and_the_key_goes_when_it_is_paid(
    servers: Servers, buckets: SharedBuckets
) -> None:
    tenant = uuid4()
    await take(buckets, tenant, 60 * RATE)
    assert await take(buckets, tenant, 1) == 0
    async with Redis.from_url(servers.valkey.url) as redis:
        (key,) = await redis.keys(f"*{tenant}*")
        assert key == f"palimpsest:quota:{{{tenant}}}:{NAME.value}".encode()
        assert 50_000 < await redis.pttl(key) <= 61_001


async def test_a_server_measures_by_itself_while_redis_is_away() -> None:
    tenant = uuid4()
    with TemporaryDirectory(prefix="palimpsest-test-") as folder:
        # The server may run as another user, who must be able to get there.
        os.chmod(folder, 0o755)
        valkey = ValkeyServer(Path(folder) / "valkey")
        valkey.start()
        link = RedisLink(valkey.url, timeout_seconds=10)
        buckets = SharedBuckets(link)
        assert await take(buckets, tenant, RATE) == RATE
        valkey.stop()
    limits = RateLimits(buckets)
    # No call fails.
    passed = [not await limits.take(tenant, NAME, rate=1, needed=1) for _ in range(3)]
    assert passed == [True, False, False]
    assert not link.is_reachable
    await link.close()


async def test_without_redis_nothing_is_shared() -> None:
    assert await SharedBuckets(None).take(uuid4(), "n", rate=1, needed=1, wanted=1) is None
