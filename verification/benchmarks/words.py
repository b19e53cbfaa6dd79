"""Measures how fast the words of chunks are indexed, and what that costs concurrent appends.

`value` is chunks a second of the indexer (2 KB chunks, one session, one after the other)
divided by those of one bare INSERT … SELECT to_tsvector over the same chunks. `appends` is
acked chunks a second over gRPC while a worker indexes, divided by those while it stands
still; rounds alternate. `vectors` is chunks a second of the local model for vectors, 0 where
it is not installed.
"""

import asyncio
import os
import signal
import statistics
import time
from typing import Any
from uuid import UUID

import psycopg

import palimpsest
from service.domain.calls.ledger import CallScope
from service.domain.values.tenancy import DEFAULT_TENANT, session_key
from service.domain.values.work_items import WorkItem, WorkKind
from service.llm.embeddings.embedding import CannotEmbed
from service.llm.embeddings.local_embedder import LocalEmbedder
from service.settings.config import Config
from service.usecases.search.index import Indexer
from storage.engine.database import Database
from tests.support.harness import Process, Servers, api, eventually, worker
from verification.benchmarks.append import CHUNK, ROUND_CHUNKS

ROUNDS = 5
#: Chunks of the session that is indexed again and again.
CHUNKS = 5000
#: Texts that the local model embeds.
EMBEDDED = 64
WORDS = CHUNK.split()

_BARE = """
INSERT INTO chunk_word (session_key, position, tenant_id, words, length)
SELECT session_key, position, tenant_id, to_tsvector('english', text), 0 FROM chunk
"""


def run(seconds: float) -> dict[str, Any]:
    """Measures; see the module."""
    with Servers.started() as servers:
        value, speed = asyncio.run(_index(servers, seconds))
        appends = asyncio.run(_append(servers))
    vectors = asyncio.run(_embed())
    return {
        "value": round(value, 2),
        "chunks_per_second": round(speed),
        "appends": round(appends, 2),
        "vectors": round(vectors, 1),
    }


async def _index(servers: Servers, seconds: float) -> tuple[float, float]:
    url = servers.new_database()
    key = session_key(DEFAULT_TENANT, "bench")
    with api(url) as (_, address):
        async with palimpsest.connect(address) as client:
            await _send(client, "bench", CHUNKS)
    database = Database.connect(url, pool_size=2, name="bench")
    until = time.monotonic() + seconds
    ours: list[float] = []
    bare: list[float] = []
    try:
        while len(ours) < ROUNDS or time.monotonic() < until:
            _forget(servers, url)
            ours.append(await _by_indexer(database, key))
            _forget(servers, url)
            bare.append(_by_statement(servers, url))
    finally:
        await database.close()
    ratio = statistics.median(a / b for a, b in zip(ours, bare, strict=True))
    return ratio, statistics.median(ours)


def _forget(servers: Servers, url: str) -> None:
    with psycopg.connect(servers.as_superuser(url), autocommit=True) as connection:
        connection.execute("TRUNCATE chunk_word, posting_list, posting_block")
        connection.execute("UPDATE session SET indexed_position = 0, has_unindexed = true")


async def _by_indexer(database: Database, key: UUID) -> float:
    item = WorkItem(kind=WorkKind.INDEX, tenant_id=DEFAULT_TENANT, session_key=key, item_id=key)
    start = time.perf_counter()
    while await Indexer(database, None, Config()).index(item) is not None:
        pass
    return CHUNKS / (time.perf_counter() - start)


def _by_statement(servers: Servers, url: str) -> float:
    with psycopg.connect(servers.as_superuser(url)) as connection:
        start = time.perf_counter()
        connection.execute(_BARE)
        connection.commit()
        return CHUNKS / (time.perf_counter() - start)


async def _append(servers: Servers) -> float:
    url = servers.new_database()
    ratios: list[float] = []
    with api(url) as (_, address), worker(url) as process:
        async with palimpsest.connect(address) as client:
            await _send(client, "warm", ROUND_CHUNKS)
            for number in range(ROUNDS):
                beside = await _send(client, f"beside-{number}", ROUND_CHUNKS)
                alone = await _alone(servers, url, client, process, f"alone-{number}")
                ratios.append(beside / alone)
    return statistics.median(ratios)


async def _alone(
    servers: Servers, url: str, client: palimpsest.Client, process: Process, name: str
) -> float:
    await asyncio.to_thread(eventually, "all is indexed", lambda: _is_indexed(servers, url), 120.0)
    os.kill(process.pid, signal.SIGSTOP)
    try:
        return await _send(client, name, ROUND_CHUNKS)
    finally:
        os.kill(process.pid, signal.SIGCONT)


def _is_indexed(servers: Servers, url: str) -> bool:
    with psycopg.connect(servers.as_superuser(url)) as connection:
        row = connection.execute("SELECT bool_or(has_unindexed) FROM session").fetchone()
    return row is not None and not row[0]


async def _send(client: palimpsest.Client, name: str, chunks: int) -> float:
    """Appends to a session of its own; acked chunks a second."""
    session = await client.create_session(name)
    start = time.perf_counter()
    async with session.producer("bench") as producer:
        for number in range(chunks):
            await producer.append(f"{number} {CHUNK}")
    return chunks / (time.perf_counter() - start)


async def _embed() -> float:
    try:
        embedder = LocalEmbedder(Config(embedding_model="local/minilm"))
    except CannotEmbed:
        return 0.0
    scope = CallScope(
        tenant_id=DEFAULT_TENANT, session_key=UUID(int=1), memory_id=None, occasion="bench"
    )
    # About 200 tokens each.
    texts = [f"{number} {' '.join(WORDS[:150])}" for number in range(EMBEDDED)]
    await embedder.warm()
    start = time.perf_counter()
    await embedder.embed_chunks(texts, scope=scope)
    return EMBEDDED / (time.perf_counter() - start)
