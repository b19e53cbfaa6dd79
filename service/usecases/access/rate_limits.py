"""Limits rates of tenants over all API servers.

A server leases tokens from the bucket in Redis for LEASE_SECONDS at a time, so that few calls wait
for Redis. Where it is away, or takes longer than its time-out, the server measures by a bucket of
its own with the whole rate: then a tenant gets at most its rate on each server.
"""

import asyncio
import math
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from uuid import UUID

from service.domain.access.quotas import QuotaName, TokenBucket
from storage.access.token_buckets import SharedBuckets

#: So much of its rate a server leases beyond what it needs, in seconds.
LEASE_SECONDS = 0.1
#: Leased tokens that are not used within so many seconds are lost.
UNUSED_SECONDS = 1.0
#: Tenants and quotas that one server remembers; the ones used least recently are forgotten.
MAX_LEASES = 10_000


@dataclass(slots=True)
class _Lease:
    """What one server has of one rate of one tenant."""

    rate: int
    tokens: int = 0
    #: Until when the tokens are valid, and until when there are none, by the server's clock.
    valid_until: float = 0.0
    empty_until: float = 0.0
    bucket: TokenBucket = field(default_factory=TokenBucket)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class RateLimits:
    """The rates of all tenants, in one API server."""

    def __init__(
        self, buckets: SharedBuckets, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._buckets = buckets
        self._clock = clock
        self._leases: OrderedDict[tuple[UUID, QuotaName], _Lease] = OrderedDict()

    async def take(self, tenant_id: UUID, name: QuotaName, *, rate: int, needed: int) -> float:
        """Takes tokens, and returns 0; else returns after how many seconds to try again."""
        lease = self._lease(tenant_id, name, rate)
        if self._has(lease, needed):
            return 0.0
        async with lease.lock:
            # Those before in the queue may have leased enough, or found that there is none.
            if self._has(lease, needed):
                return 0.0
            now = self._clock()
            if now < lease.empty_until:
                return lease.empty_until - now
            held = lease.tokens if now < lease.valid_until else 0
            # They are this call's: others may not spend them while it waits.
            lease.tokens = 0
            wait = math.inf
            try:
                wait = await self._renew(lease, tenant_id, name, needed - held)
            finally:
                if wait:
                    lease.tokens = held
            return wait

    async def _renew(self, lease: _Lease, tenant_id: UUID, name: QuotaName, missing: int) -> float:
        wanted = max(missing, math.ceil(lease.rate * LEASE_SECONDS))
        found = await self._buckets.take(
            tenant_id, name.value, rate=lease.rate, needed=missing, wanted=wanted
        )
        now = self._clock()
        if found is None:
            found = lease.bucket.take(lease.rate, missing, missing, now)
        taken, seconds = found
        if not taken:
            lease.empty_until = now + seconds
            return seconds
        # The lease has what was missing, and gives all that was needed.
        lease.tokens = taken - missing
        lease.valid_until = now + UNUSED_SECONDS
        return 0.0

    def _has(self, lease: _Lease, needed: int) -> bool:
        if lease.tokens < needed or self._clock() >= lease.valid_until:
            return False
        lease.tokens -= needed
        return True

    def _lease(self, tenant_id: UUID, name: QuotaName, rate: int) -> _Lease:
        key = (tenant_id, name)
        lease = self._leases.get(key)
        if lease is None or lease.rate != rate:
            # A new rate applies at once: tokens and waiting of the old one are void.
            lease = self._leases[key] = _Lease(rate)
            if len(self._leases) > MAX_LEASES:
                self._leases.popitem(last=False)
        self._leases.move_to_end(key)
        return lease
