"""Counts in Redis of the calls that run at once, which all API servers share."""

from uuid import UUID

from storage.engine.redis_link import RedisLink

#: A hash of each tenant and quota: how many calls a server has, and until when that is valid, by
#: the clock of Redis in milliseconds. A count is set, not added to: one that was lost, or is
#: sent twice, is right again with the next.
_SET = """
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local count, limit = tonumber(ARGV[2]), tonumber(ARGV[3])
local entries, others = redis.call('HGETALL', KEYS[1]), 0
for index = 1, #entries, 2 do
    local calls, ends = string.match(entries[index + 1], '^(%d+):(%d+)$')
    if tonumber(ends) <= now then
        redis.call('HDEL', KEYS[1], entries[index])
    elseif entries[index] ~= ARGV[1] then
        others = others + tonumber(calls)
    end
end
if limit > 0 and others + count > limit then
    return 0
end
if count == 0 then
    redis.call('HDEL', KEYS[1], ARGV[1])
else
    redis.call('HSET', KEYS[1], ARGV[1], string.format('%d:%.0f', count, now + ARGV[4]))
    redis.call('PEXPIRE', KEYS[1], ARGV[4])
end
return 1
"""


class SharedSlots:
    """The counts of all servers. None of it raises: without Redis nothing is known."""

    def __init__(self, link: RedisLink | None, server: str, *, lease_seconds: float) -> None:
        """`server` names this one. After `lease_seconds` the others forget what it has set."""
        self._link = link
        self._server = server
        self._lease_ms = round(lease_seconds * 1000)

    async def set(self, tenant_id: UUID, name: str, count: int, *, limit: int) -> bool | None:
        """Sets how many calls this server has; False where all have more than `limit` then.

        A `limit` of 0 refuses nothing. None: Redis is away, or refuses scripts.
        """
        if self._link is None:
            return None
        key = f"palimpsest:slots:{{{tenant_id}}}:{name}"
        arguments = (self._server, count, limit, self._lease_ms)
        replies = await self._link.send([("EVAL", _SET, 1, key, *arguments)])
        reply = replies[0] if replies else None
        return bool(reply) if isinstance(reply, int) else None
