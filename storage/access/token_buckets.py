"""Token buckets in Redis, which all API servers share."""

from uuid import UUID

from storage.engine.redis_link import RedisLink

#: `service.domain.access.quotas.TokenBucket`, by the clock of Redis: those of servers may differ.
#: Times are in microseconds.
_TAKE = """
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local each = 1000000 / ARGV[1]
local needed, wanted = tonumber(ARGV[2]), tonumber(ARGV[3])
local full_at = math.max(tonumber(redis.call('GET', KEYS[1]) or '0'), now)
local free = math.floor((now + 1000000 - full_at) / each + 0.000001)
local least = math.min(needed, tonumber(ARGV[1]))
if free < least then
    return {0, math.ceil((least - free) * each)}
end
local taken = math.max(needed, math.min(wanted, free))
full_at = full_at + taken * each
redis.call('SET', KEYS[1], string.format('%.0f', full_at),
    'PX', math.ceil((full_at - now) / 1000) + 1000)
return {taken, 0}
"""


class SharedBuckets:
    """The buckets of all tenants. None of it raises: without Redis a take returns None."""

    def __init__(self, link: RedisLink | None) -> None:
        """`link`: None, where there is no Redis."""
        self._link = link

    async def take(
        self, tenant_id: UUID, name: str, *, rate: int, needed: int, wanted: int
    ) -> tuple[int, float] | None:
        """Takes tokens as `TokenBucket.take`; None when Redis is away or refuses scripts."""
        if self._link is None:
            return None
        key = f"palimpsest:quota:{{{tenant_id}}}:{name}"
        replies = await self._link.send([("EVAL", _TAKE, 1, key, rate, needed, wanted)])
        reply = replies[0] if replies else None
        if not isinstance(reply, list):
            return None
        return int(reply[0]), int(reply[1]) / 1e6
