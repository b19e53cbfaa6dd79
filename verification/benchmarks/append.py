"""How fast chunks become durable over gRPC, against a bare COPY of the same rows.

`value` is acked chunks a second over gRPC (8 sessions, 2 KB chunks, one server
process) divided by rows a second of psycopg's COPY into the same table, committed
every 256 rows. `lone_ack` is the median latency of a lone chunk's ack divided by that
of a bare single-row commit, `lone_request` that of a `session.append` divided by that of a
lone chunk's ack. All sides alternate, so that a machine that slows down
slows both.
"""

import asyncio
import hashlib
import statistics
import time
from typing import Any
from uuid import UUID, uuid4

import psycopg

import palimpsest
from service.domain.values.tenancy import DEFAULT_TENANT, session_key
from tests.support.harness import Servers, api

SESSIONS = 8
CHUNK = "The quick brown fox jumps over the lazy dog; " * 46
CHUNK = CHUNK[:2000]
COMMIT_ROWS = 256
ROUNDS = 5
#: Chunks that a session sends in a round.
ROUND_CHUNKS = 2048
LONE_CHUNKS = 300

_COPY = """COPY chunk (tenant_id, session_key, position, producer_id, producer_sequence, kind,
    role, text, observation, thought, action, metadata, digest) FROM STDIN"""
_INSERT = """INSERT INTO chunk (tenant_id, session_key, position, producer_id,
    producer_sequence, kind, role, text, observation, thought, action, metadata, digest)
    VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)"""


def run(seconds: float) -> dict[str, Any]:
    """Measures; see the module."""
    with Servers.started() as servers:
        url = servers.new_database()
        with api(url) as (_, address):
            return asyncio.run(_measure(address, servers.as_superuser(url), seconds))


async def _measure(address: str, url: str, seconds: float) -> dict[str, Any]:
    until = time.monotonic() + seconds
    streamed: list[float] = []
    bare: list[float] = []
    async with palimpsest.connect(address) as client:
        names = [f"bench-{index}" for index in range(SESSIONS)]
        for name in names:
            await client.create_session(name)
        while len(streamed) < ROUNDS or time.monotonic() < until:
            streamed.append(await _stream(client, names))
            bare.append(copied(url, SESSIONS, ROUND_CHUNKS, CHUNK))
        lone_acks, lone_requests, lone_commits = await _lone(client, url)
    ratio = statistics.median(a / b for a, b in zip(streamed, bare, strict=True))
    lone = statistics.median(lone_acks) / statistics.median(lone_commits)
    return {
        "value": round(ratio, 3),
        "goal": ">= 0.5",
        "acked_chunks_per_second": round(statistics.median(streamed)),
        "copied_rows_per_second": round(statistics.median(bare)),
        "rounds": len(streamed),
        "lone_ack": round(lone, 2),
        "lone_ack_goal": "<= 3",
        "lone_request": round(statistics.median(lone_requests) / statistics.median(lone_acks), 2),
        "lone_ack_ms": round(statistics.median(lone_acks) * 1000, 2),
        "lone_commit_ms": round(statistics.median(lone_commits) * 1000, 2),
    }


async def _stream(client: palimpsest.Client, names: list[str]) -> float:
    """Chunks a second, acked, of all sessions together."""

    async def send(name: str) -> None:
        async with client.session(name).producer(f"p-{uuid4().hex}") as producer:
            for _ in range(ROUND_CHUNKS):
                await producer.append(CHUNK)
            await producer.flush()

    start = time.perf_counter()
    await asyncio.gather(*(send(name) for name in names))
    return SESSIONS * ROUND_CHUNKS / (time.perf_counter() - start)


def _row(key: UUID, position: int, chunk: str = CHUNK) -> tuple[object, ...]:
    digest = hashlib.sha256(chunk.encode()).digest()
    text = ("text", "", chunk, "", "", "", None, digest)
    return (DEFAULT_TENANT, key, position, "bare", position, *text)


def _bare_session(connection: psycopg.Connection) -> UUID:
    name = f"bare-{uuid4().hex}"
    key = session_key(DEFAULT_TENANT, name)
    connection.execute(
        "INSERT INTO session (session_key, tenant_id, name) VALUES (%s, %s, %s)",
        (key, DEFAULT_TENANT, name),
    )
    connection.execute(
        "INSERT INTO producer (session_key, producer_id, tenant_id, epoch, last_sequence)"
        " VALUES (%s, 'bare', %s, 0, 0)",
        (key, DEFAULT_TENANT),
    )
    connection.commit()
    return key


def copied(url: str, sessions: int, each: int, chunk: str) -> float:
    """Rows a second of COPY, committed every COMMIT_ROWS, by the superuser."""
    with psycopg.connect(url) as connection:
        keys = [_bare_session(connection) for _ in range(sessions)]
        start = time.perf_counter()
        for key in keys:
            for first in range(0, each, COMMIT_ROWS):
                with connection.cursor().copy(_COPY) as copy:
                    for position in range(first + 1, min(first + COMMIT_ROWS, each) + 1):
                        copy.write_row(_row(key, position, chunk))
                connection.commit()
        return sessions * each / (time.perf_counter() - start)


async def _lone(
    client: palimpsest.Client, url: str
) -> tuple[list[float], list[float], list[float]]:
    """Latencies of lone chunks of a producer, of `session.append`, and of bare commits, in turn."""
    acks: list[float] = []
    requests: list[float] = []
    # A session of its own: in the producer's it would be what makes its guesses wrong.
    appended = await client.create_session("lone-requests")
    commits: list[float] = []
    await client.create_session("lone")
    with psycopg.connect(url, autocommit=True) as connection:
        key = _bare_session(connection)
        async with client.session("lone").producer("lone") as producer:
            for position in range(1, LONE_CHUNKS + 1):
                start = time.perf_counter()
                await producer.append(CHUNK)
                await producer.flush()
                acks.append(time.perf_counter() - start)
                start = time.perf_counter()
                await appended.append(CHUNK)
                requests.append(time.perf_counter() - start)
                start = time.perf_counter()
                connection.execute(_INSERT, _row(key, position))
                commits.append(time.perf_counter() - start)
    return acks, requests, commits
