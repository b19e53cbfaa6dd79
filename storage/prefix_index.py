"""The prefix cache's index in Redis (or Valkey).

One hash a memory and one a group of memories with the same task and schema; a field a
segment, whose value is when it goes cold (Unix seconds). One round trip each way.
Whatever Redis does, the service goes on: what cannot be looked up is not warm.

Fields have no expiry of their own (Redis before 7.4 knows none), and a memory that is
never quiet would keep its key: so each value is compared with the clock, and a hash
that has grown far beyond its prompt is begun anew.
"""

import time
from collections.abc import Sequence

import structlog
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

_log = structlog.get_logger("palimpsest.prefix_cache")

#: How long Redis may take before it counts as gone.
TIMEOUT_SECONDS = 0.2
#: How long it is left alone after that, so that steps do not wait for it each time.
PAUSE_SECONDS = 1.0
#: Fields that a hash may have beyond those of the prompt at hand: what folds left
#: behind, and the prompts of answers.
SPARE_FIELDS = 512


class NullPrefixIndex:
    """Knows nothing: for when there is no Redis."""

    async def lookup(self, memory_key: str, group_key: str, ids: Sequence[bytes]) -> set[bytes]:
        """Nothing is warm."""
        return set()

    async def touch(
        self, memory_key: str, group_key: str, ids: Sequence[bytes], ttl_seconds: int
    ) -> None:
        """Forgets."""


class RedisPrefixIndex:
    """See `service.llm.prefix_cache.PrefixIndex`."""

    def __init__(self, url: str) -> None:
        self._redis = Redis.from_url(
            url,
            socket_connect_timeout=TIMEOUT_SECONDS,
            socket_timeout=TIMEOUT_SECONDS,
            retry=Retry(NoBackoff(), 0),
            max_connections=64,
        )
        self._resume_at = 0.0
        self._lost = False

    async def close(self) -> None:
        """Closes the connections."""
        await self._redis.aclose()

    async def lookup(self, memory_key: str, group_key: str, ids: Sequence[bytes]) -> set[bytes]:
        """Which of `ids` are warm."""
        if not ids or self._paused():
            return set()
        try:
            async with self._redis.pipeline(transaction=False) as pipe:
                pipe.hmget(_group(group_key), [ids[0]])
                if ids[1:]:
                    pipe.hmget(_memory(memory_key), list(ids[1:]))
                replies = await pipe.execute()
        except (RedisError, OSError) as error:
            self._gone(error)
            return set()
        self._back()
        now = time.time()
        found = [value for reply in replies for value in reply]
        return {one for one, value in zip(ids, found, strict=True) if _is_warm(value, now)}

    async def touch(
        self, memory_key: str, group_key: str, ids: Sequence[bytes], ttl_seconds: int
    ) -> None:
        """Says that a prompt with these ids was sent now."""
        if not ids or self._paused():
            return
        cold_at = str(int(time.time()) + ttl_seconds)
        hashes = [(_group(group_key), ids[:1]), (_memory(memory_key), ids[1:])]
        try:
            sizes = await self._write([(k, part) for k, part in hashes if part], cold_at)
            grown = [
                (key, part)
                for (key, part), size in zip(hashes, sizes, strict=False)
                if size > len(part) + SPARE_FIELDS
            ]
            if grown:
                await self._write(grown, cold_at, anew=True)
        except (RedisError, OSError) as error:
            self._gone(error)
            return
        self._back()

    async def _write(
        self, hashes: Sequence[tuple[str, Sequence[bytes]]], cold_at: str, *, anew: bool = False
    ) -> list[int]:
        """Writes fields, in one round trip; how many each hash has now."""
        async with self._redis.pipeline(transaction=False) as pipe:
            for key, part in hashes:
                if anew:
                    pipe.delete(key)
                pipe.hset(key, mapping=dict.fromkeys(part, cold_at))
                pipe.expireat(key, int(cold_at))
                pipe.hlen(key)
            replies = await pipe.execute()
        step = 4 if anew else 3
        return [int(size) for size in replies[step - 1 :: step]]

    def _paused(self) -> bool:
        return time.monotonic() < self._resume_at

    def _gone(self, error: Exception) -> None:
        self._resume_at = time.monotonic() + PAUSE_SECONDS
        if not self._lost:
            self._lost = True
            _log.warning("redis is gone; predictions are 0 until it is back", cause=str(error))

    def _back(self) -> None:
        if self._lost:
            self._lost = False
            _log.info("redis is back")


def _is_warm(value: bytes | None, now: float) -> bool:
    return value is not None and value.isdigit() and int(value) > now


def _memory(key: str) -> str:
    # The braces keep all keys of one memory on one node of a cluster.
    return f"pc:{{{key}}}:seg"


def _group(key: str) -> str:
    return f"pc:g:{{{key}}}:seg"
