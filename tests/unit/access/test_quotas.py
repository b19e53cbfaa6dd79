"""Quotas: the token bucket, and the leases of one server."""

import asyncio
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.domain.access.quotas import Quota, QuotaName, TokenBucket
from service.domain.values.tenancy import DEFAULT_TENANT, SYSTEM_TENANT
from service.settings.config import Limits
from service.usecases.access.quotas import in_force
from service.usecases.access.rate_limits import UNUSED_SECONDS, RateLimits

A, B = UUID(int=1), UUID(int=2)
CHUNKS = QuotaName.CHUNKS_PER_SECOND


class Shared:
    """Stands for the buckets in Redis, by a clock that a test moves; may be away."""

    def __init__(self) -> None:
        self.now = 100.0
        self.is_away = False
        self.asked = 0
        self._buckets: dict[tuple[UUID, str], TokenBucket] = {}

    def clock(self) -> float:
        return self.now

    async def take(
        self, tenant_id: UUID, name: str, *, rate: int, needed: int, wanted: int
    ) -> tuple[int, float] | None:
        self.asked += 1
        await asyncio.sleep(0)
        if self.is_away:
            return None
        bucket = self._buckets.setdefault((tenant_id, name), TokenBucket())
        return bucket.take(rate, needed, wanted, self.now)


def server(shared: Shared, *, ahead: float = 0.0) -> RateLimits:
    """Returns the limits of a server whose clock is so many seconds ahead."""
    return RateLimits(shared, clock=lambda: shared.now + ahead)  # type: ignore[arg-type]


async def taken(limits: RateLimits, count: int, *, rate: int = 100, tenant: UUID = A) -> int:
    """Returns how many of so many calls pass."""
    return sum([not await limits.take(tenant, CHUNKS, rate=rate, needed=1) for _ in range(count)])


@given(
    st.integers(1, 50),
    st.lists(st.tuples(st.floats(0, 3), st.integers(1, 120), st.integers(0, 30)), max_size=60),
)
def test_a_bucket_gives_a_second_s_worth_and_then_its_rate(
    rate: int, takes: list[tuple[float, int, int]]
) -> None:
    bucket, now, total, largest = TokenBucket(), 1000.0, 0, 0
    for after, needed, more in takes:
        now += after
        got, seconds = bucket.take(rate, needed, needed + more, now)
        assert got == 0 or needed <= got <= needed + more
        assert (got == 0) == (seconds > 0)
        total += got
        largest = max(largest, got)
    # What is owed for a take of more than the bucket holds is paid before the next.
    assert total <= rate * (1 + now - 1000.0) + largest


@given(st.integers(1, 50), st.integers(1, 200))
def test_what_is_refused_passes_after_the_time_that_is_given(rate: int, needed: int) -> None:
    bucket = TokenBucket()
    assert bucket.take(rate, rate, rate, 10.0)[0] == rate
    got, seconds = bucket.take(rate, needed, needed, 10.0)
    assert got == 0
    assert bucket.take(rate, needed, needed, 10.0 + seconds * 0.5)[0] == 0
    assert bucket.take(rate, needed, needed, 10.0 + seconds + 1e-5)[0] == needed


async def test_two_servers_share_a_rate_and_seldom_ask() -> None:
    shared = Shared()
    one, two = server(shared), server(shared, ahead=3600.0)
    passed = await taken(one, 60) + await taken(two, 60)
    assert passed == 100
    # Each lease is of a tenth of a second; what is refused is not asked for again.
    assert shared.asked <= 14
    shared.now += 0.5
    assert await taken(one, 60) + await taken(two, 60) == 50


async def test_a_server_does_not_ask_again_before_there_can_be_a_token() -> None:
    shared = Shared()
    limits = server(shared)
    assert await taken(limits, 200) == 100
    asked = shared.asked
    assert await taken(limits, 1000) == 0
    assert shared.asked == asked
    wait = await limits.take(A, CHUNKS, rate=100, needed=1)
    assert 0 < wait <= 0.011
    shared.now += wait
    assert await taken(limits, 1) == 1


async def test_a_tenant_s_rate_leaves_another_s_alone() -> None:
    shared = Shared()
    limits = server(shared)
    await taken(limits, 500)
    assert await taken(limits, 100, tenant=B) == 100


async def test_a_new_rate_applies_at_once() -> None:
    limits = server(Shared())
    await taken(limits, 500, rate=10)
    waits = [await limits.take(A, CHUNKS, rate=rate, needed=1) for rate in (10, 1000, 10)]
    assert waits == pytest.approx([0.1, 0.001, 0.1])


async def test_without_redis_each_server_has_the_whole_rate() -> None:
    shared = Shared()
    shared.is_away = True
    one, two = server(shared), server(shared)
    assert (await taken(one, 300), await taken(two, 300)) == (100, 100)
    # And after its return the rate is shared again.
    shared.now += 10
    shared.is_away = False
    assert await taken(one, 300) + await taken(two, 300) == 100


async def test_unused_tokens_of_a_lease_are_lost() -> None:
    shared = Shared()
    limits = server(shared)
    await taken(limits, 1)
    asked = shared.asked
    shared.now += UNUSED_SECONDS
    await taken(limits, 1)
    assert shared.asked == asked + 1


async def test_calls_at_once_share_a_lease() -> None:
    shared = Shared()
    limits = server(shared)
    waits = await asyncio.gather(*(limits.take(A, CHUNKS, rate=1000, needed=1) for _ in range(100)))
    assert waits == [0.0] * 100
    assert shared.asked == 1


@pytest.mark.parametrize("needed", [100, 200])
async def test_a_lease_is_spent_once_while_it_is_renewed(needed: int) -> None:
    shared = Shared()
    limits = server(shared)
    assert await limits.take(A, CHUNKS, rate=1000, needed=1) == 0
    # 99 are left of the lease: a batch of all and more, and calls that come meanwhile.
    calls = [limits.take(A, CHUNKS, rate=1000, needed=n) for n in (needed, *[1] * 99)]
    assert await asyncio.gather(*calls) == [0.0] * 100
    passed = 1 + needed + 99
    assert await taken(limits, 2000, rate=1000) == 1000 - passed


async def test_what_a_lease_has_stays_when_its_renewal_is_refused_or_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shared = Shared()
    limits = server(shared)
    assert await taken(limits, 95, rate=100) == 95
    assert await limits.take(A, CHUNKS, rate=100, needed=50) > 0
    assert await taken(limits, 5, rate=100) == 5
    shared.now += 10
    assert await taken(limits, 1, rate=100) == 1

    async def fails(*_: object, **__: object) -> None:
        raise asyncio.CancelledError

    monkeypatch.setattr(shared, "take", fails)
    with pytest.raises(asyncio.CancelledError):
        await limits.take(A, CHUNKS, rate=100, needed=50)
    assert await taken(limits, 9, rate=100) == 9


async def test_a_batch_larger_than_the_rate_passes_and_is_paid_for() -> None:
    shared = Shared()
    limits = server(shared)
    assert await limits.take(A, CHUNKS, rate=10, needed=50) == 0
    wait = await limits.take(A, CHUNKS, rate=10, needed=1)
    assert wait == pytest.approx(4.1, abs=0.01)


@pytest.mark.parametrize("tenant", [DEFAULT_TENANT, SYSTEM_TENANT])
def test_our_own_tenants_have_no_default(tenant: UUID) -> None:
    limits = Limits(tenant_sessions=5)
    assert in_force(tenant, {}, limits) == Quota()
    assert in_force(tenant, {QuotaName.SESSIONS: 7}, limits) == Quota(sessions=7)


def test_what_is_set_takes_the_place_of_the_default() -> None:
    limits = Limits(tenant_sessions=5, tenant_memories=6)
    assert in_force(A, {}, limits) == Quota(sessions=5, memories=6)
    assert in_force(A, {QuotaName.SESSIONS: 0}, limits) == Quota(memories=6)
    assert in_force(A, {QuotaName.SESSIONS: None}, limits).sessions == 5
