"""The connection to Redis (or Valkey, alone or as a cluster), which may be lost at any time.

Its content is advice, so nothing here raises: a batch of commands returns replies or None. After a
failure Redis is not used for PAUSE_SECONDS, so that not every step waits for it. Its loss and its
return are logged once each.
"""

import time
from collections.abc import Sequence
from typing import Any

import structlog
from redis.asyncio import Redis, RedisCluster
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import MovedError, RedisError

_log = structlog.get_logger("palimpsest.prefix_cache")

#: How long Redis may take by default before it counts as gone, in seconds.
TIMEOUT_SECONDS = 0.2
#: How long it is not asked after that, in seconds.
PAUSE_SECONDS = 1.0
#: Connections of one process, to each node.
MAX_CONNECTIONS = 64


#: Errors of a lost connection; uvloop raises RuntimeError for a write to one that was reset since
#: its last use.
_GONE = (RedisError, OSError, RuntimeError)


#: A command with its arguments. The first one is its only key, by which a cluster finds the node;
#: of EVAL it is the third, after the script and the number of keys.
Command = tuple[str | bytes | int, ...]


class RedisLink:
    """Sends batches of commands in one round trip."""

    def __init__(
        self, url: str, *, cluster: bool = False, timeout_seconds: float = TIMEOUT_SECONDS
    ) -> None:
        self._url = url
        self._options = _options(timeout_seconds)
        self._single: Redis | None = None if cluster else Redis.from_url(url, **self._options)
        self._cluster: RedisCluster | None = self._clustered() if cluster else None
        self._resume_at = 0.0
        self._lost = False

    @property
    def is_reachable(self) -> bool:
        """Whether Redis replied when it was last asked."""
        return not self._lost

    async def close(self) -> None:
        """Closes the connections, as far as Redis does so in time."""
        for client in (self._single, self._cluster):
            if client is not None:
                try:
                    await client.aclose()
                except _GONE as error:
                    self.note_loss(error)

    async def send(self, commands: Sequence[Command]) -> list[Any] | None:
        """Returns the reply to each, which may be a RedisError; None when Redis is gone."""
        if time.monotonic() < self._resume_at:
            return None
        try:
            replies = await self._send(commands)
            if self._cluster is None and any(isinstance(one, MovedError) for one in replies):
                # The node belongs to a cluster.
                await self._become_cluster()
                replies = await self._send(commands)
        except _GONE as error:
            self.note_loss(error)
            return None
        self._back()
        return replies

    def note_loss(self, error: Exception) -> None:
        """Pauses the use of Redis, after an error that only a lost or failing server causes."""
        self._resume_at = time.monotonic() + PAUSE_SECONDS
        if not self._lost:
            self._lost = True
            _log.warning("redis is gone; predictions are worse until it is back", cause=str(error))

    async def _send(self, commands: Sequence[Command]) -> list[Any]:
        if self._cluster is not None:
            return await self._send_to_nodes(self._cluster, commands)
        assert self._single is not None, "one of the two is there"
        async with self._single.pipeline(transaction=False) as pipe:
            for command in commands:
                pipe.execute_command(*command)
            return list(await pipe.execute(raise_on_error=False))

    async def _send_to_nodes(self, cluster: RedisCluster, commands: Sequence[Command]) -> list[Any]:
        await cluster.initialize()
        async with cluster.pipeline() as pipe:
            for command in commands:
                # Named here, so that the client need not ask a node which argument is the key.
                key = command[3] if command[0] == "EVAL" else command[1]
                node = cluster.get_node_from_key(str(key))
                pipe.execute_command(*command, target_nodes=node)
            return list(await pipe.execute(raise_on_error=False))

    async def _become_cluster(self) -> None:
        assert self._single is not None, "a cluster stays one"
        self._cluster, single = self._clustered(), self._single
        self._single = None
        await single.aclose()

    def _clustered(self) -> RedisCluster:
        return RedisCluster.from_url(self._url, **self._options, require_full_coverage=False)

    def _back(self) -> None:
        if self._lost:
            self._lost = False
            _log.info("redis is back")


def _options(timeout_seconds: float) -> dict[str, Any]:
    return {
        "socket_connect_timeout": timeout_seconds,
        "socket_timeout": timeout_seconds,
        "retry": Retry(NoBackoff(), 0),
        "max_connections": MAX_CONNECTIONS,
    }
