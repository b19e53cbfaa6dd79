"""The prefix index: its memory, and its time against the least that a round trip takes.

`value` is the memory of a million segments, a hundred a memory, in megabytes: the growth
of what the server says it uses. Besides, the median of a lookup of 32 segments divided
by the median of a PING over a connection of the same kind; the last boundary but one is the
deepest that is known, as from call to call.
"""

import asyncio
import os
import statistics
import struct
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

from redis.asyncio import Redis as AsyncRedis

from service.domain.calls.prefix_index import PrefixQuery, Sent
from service.local.valkey import ValkeyServer
from storage.calls.prefix_index import RedisPrefixIndex
from verification.benchmarks.alternating import alternate

SEGMENTS = 1_000_000
OF_A_MEMORY = 100
OF_A_PROMPT = 32
#: How many prompts are written at once while the index is filled.
AT_ONCE = 50
TTL = 3600
_TENANT = UUID(int=1)


def run(seconds: float) -> dict[str, Any]:
    """Measures; see the module."""
    with tempfile.TemporaryDirectory(prefix="palimpsest-bench-") as name:
        Path(name).chmod(0o755)
        with ValkeyServer(Path(name) / "valkey") as server:
            return asyncio.run(_measure(server.url, seconds))


async def _measure(url: str, seconds: float) -> dict[str, Any]:
    index = RedisPrefixIndex(url)
    async with AsyncRedis.from_url(url) as redis:
        await _fill(index, 0, AT_ONCE)
        await redis.flushall()
        before = int((await redis.info("memory"))["used_memory"])
        await _fill(index, 0, SEGMENTS // OF_A_MEMORY)
        grown = int((await redis.info("memory"))["used_memory"]) - before
        prompt = _prompt(7)
        asked = _question(prompt)

        async def ping() -> None:
            await redis.ping()

        jobs: dict[str, Callable[[], Awaitable[object]]] = {
            "ping": ping,
            "look": lambda: index.look(asked),
        }
        medians = await _medians(jobs, seconds)
        colds = await _medians({"cold": lambda: index.look(_question(_cold()))}, 1.0)
    await index.close()
    micros = {name: round(taken * 1e6) for name, taken in {**medians, **colds}.items()}
    return {
        "value": round(grown / 1e6, 1),
        "goal": "<= 40",
        "bytes_a_segment": round(grown / SEGMENTS, 1),
        "look_of_ping": round(medians["look"] / medians["ping"], 2),
        "goal_of_ping": "<= 5",
        **{f"{name}_us": taken for name, taken in micros.items()},
    }


async def _medians(
    jobs: dict[str, Callable[[], Awaitable[object]]], seconds: float
) -> dict[str, float]:
    times = await alternate(jobs, seconds, warm=100)
    return {name: statistics.median(taken) for name, taken in times.items()}


async def _fill(index: RedisPrefixIndex, first: int, count: int) -> None:
    for at in range(first, first + count, AT_ONCE):
        await asyncio.gather(
            *(index.sent(_sent(_prompt(number))) for number in range(at, at + AT_ONCE))
        )


def _prompt(number: int) -> tuple[str, list[bytes]]:
    """Returns a memory's key and the boundaries of its longest prompt."""
    parts = (struct.pack(">II", number, at) for at in range(OF_A_MEMORY))
    return f"{_TENANT}:{UUID(int=number)}", list(parts)


def _cold() -> tuple[str, list[bytes]]:
    return f"{_TENANT}:{uuid4()}", [os.urandom(8) for _ in range(OF_A_PROMPT)]


def _sent(prompt: tuple[str, list[bytes]]) -> Sent:
    key, ids = prompt
    return Sent(
        memory_key=key,
        group_key=f"{_TENANT}:group",
        boundaries=tuple((one, 200 * at) for at, one in enumerate(ids, start=1)),
        with_group=False,
        deployment="model",
        now=time.time(),
        ttl_seconds=TTL,
    )


def _question(prompt: tuple[str, list[bytes]]) -> PrefixQuery:
    """Returns the query of a prompt of 32 segments of which the last is new."""
    key, ids = prompt
    return PrefixQuery(
        memory_key=key,
        group_key=f"{_TENANT}:group",
        ids=(*ids[: OF_A_PROMPT - 1], b"newest!!"),
        deployments=("model",),
        now=time.time(),
        ttl_seconds=TTL,
    )
