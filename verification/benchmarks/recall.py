"""Measures a recall over gRPC in long sessions, and the statements that it needs by themselves.

Sessions of made-up chunks, 100,000 (`--chunks`) and 1,000,000 (`--large`), each with a PRISM memory
of 300 entries that has read all but the newest 20. They are asked the queries of `session-search`,
for 1,000 tokens. `value` is the median with 100,000 chunks by words, in milliseconds. `ratio`
divides it by the median of the same statements, replayed in their order over psycopg.

`vectors` measures the same with a vector for each chunk, where the extra `local` is installed:
vectors are drawn by chance, with the length of its model's, since embedding the chunks would take
hours. Each query is asked twice and the second counts, whose vector is known; what embedding
takes is measured apart.
"""

import argparse
import asyncio
import random
import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import psycopg

import palimpsest
from palimpsest import Edit
from palimpsest.v1 import session_service_pb2, session_service_pb2_grpc
from service.app.kinds import memories_of
from service.domain.values.tenancy import DEFAULT_TENANT
from service.llm.embeddings.embedding import CannotEmbed
from service.llm.embeddings.local_embedder import LocalEmbedder, dimensions_of
from service.settings.config import Config, Limits
from service.usecases.log.wake_ups import WakeUps
from service.usecases.memories.consistency import Consistency
from service.usecases.memories.progress_watcher import ProgressWatcher
from service.usecases.search.consistent import ConsistentSearch
from service.usecases.search.recall import Recaller, RecallQuery
from service.usecases.search.search import Searcher
from storage.engine.database import Database
from storage.search import setup
from tests.support.harness import Servers, api
from verification.benchmarks.session_search import (
    KINDS,
    VOCABULARY,
    fill,
    index_all,
    queries,
)

CHUNKS, LARGE = 100_000, 1_000_000
TOKENS = 1000
ENTRIES = 300
UNREAD = 20
GOAL_MS, LARGE_GOAL_MS, RATIO_GOAL = 50, 150, 3
WARM = 8
MODEL = "local/minilm"
#: Vectors that chunks take turns to have.
POOL = 20_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options for the sizes of the sessions."""
    parser.add_argument("--chunks", type=int, default=CHUNKS, help="chunks of the session")
    parser.add_argument("--large", type=int, default=LARGE, help="of the large one; 0: none")


def run(seconds: float, *, chunks: int, large: int) -> dict[str, Any]:
    """Measures; see the module."""
    sizes = {"chunks": chunks, "large": large} if large else {"chunks": chunks}
    with Servers.started() as servers:
        url = servers.new_database()
        support = setup.install(url, dimensions_of(MODEL))
        superuser = servers.as_superuser(url)
        for name, count in sizes.items():
            fill(superuser, name, count)
            index_all(url, superuser, name)
            print(f"indexed {count} chunks", file=sys.stderr)
        with api(url) as (_, address):
            asyncio.run(_remember(address, list(sizes)))
        _apply(superuser, UNREAD)
        with api(url) as (_, address):
            by_words = {name: asyncio.run(_measure(address, url, name, seconds)) for name in sizes}
        vectors: dict[str, Any] | str = support.vectors_unavailable
        if not vectors:
            vectors = _with_vectors(url, superuser, seconds)
    return {
        "value": by_words["chunks"]["p50_ms"],
        "goal": f"<= {GOAL_MS}",
        "ratio_goal": f"<= {RATIO_GOAL}",
        "large_p95_goal_ms": LARGE_GOAL_MS,
        "words": by_words,
        "vectors": vectors,
        "sizes": sizes,
    }


async def _remember(address: str, sessions: Sequence[str]) -> None:
    chance = random.Random(5)
    async with palimpsest.connect(address) as client:
        for name in sessions:
            session = client.session(name)
            memory = await session.create_memory("default", "class Notes:\n    facts: list[str]\n")
            for first in range(0, ENTRIES, 10):
                await memory.edit(
                    [
                        Edit.add(f"$.facts[{at}]", " ".join(chance.choices(VOCABULARY, k=12)))
                        for at in range(first, first + 10)
                    ]
                )


def _apply(superuser_url: str, unread: int) -> None:
    with psycopg.connect(superuser_url, autocommit=True) as connection:
        # The chain of revisions says otherwise; no recall reads it.
        connection.execute("SET session_replication_role = replica")
        connection.execute(
            "UPDATE memory m SET applied_position = s.head - %s, has_work = false"
            " FROM session s WHERE s.session_key = m.session_key",
            (unread,),
        )
        connection.execute("VACUUM ANALYZE")
        connection.execute("CHECKPOINT")


def _with_vectors(url: str, superuser_url: str, seconds: float) -> dict[str, Any] | str:
    try:
        embedder = LocalEmbedder(Config(embedding_model=MODEL))
    except CannotEmbed as error:
        return str(error)
    size = dimensions_of(MODEL)
    assert size is not None, "it is there"
    _write_vectors(superuser_url, size)
    embedding = asyncio.run(_embedding_ms(embedder))
    with ExitStack() as stack:
        _, address = stack.enter_context(api(url, PALIMPSEST_EMBEDDING_MODEL=MODEL))
        measured = asyncio.run(_measure(address, url, "chunks", seconds, embedder))
    return {**measured, "embedding_p50_ms": embedding}


def _write_vectors(superuser_url: str, size: int) -> None:
    """Gives each chunk of the smaller session a vector, and notes it as embedded."""
    with psycopg.connect(superuser_url, autocommit=True) as connection:
        connection.execute("SET session_replication_role = replica")
        connection.execute("SET synchronous_commit = off")
        connection.execute("SET maintenance_work_mem = '1GB'")
        connection.execute("CREATE TEMP TABLE pool (number integer PRIMARY KEY, embedding real[])")
        chance = random.Random(7)
        with connection.cursor().copy("COPY pool (number, embedding) FROM STDIN") as copy:
            for number in range(POOL):
                held = [chance.gauss(0, 1) for _ in range(size)]
                length = sum(one * one for one in held) ** 0.5
                copy.write_row((number, [one / length for one in held]))
        index = f"{setup.VECTORS_INDEX}{size}"
        ((made,),) = connection.execute(
            "SELECT pg_get_indexdef(to_regclass(%s))", (f"public.{index}",)
        ).fetchall()
        connection.execute(f"DROP INDEX {index}")
        connection.execute(
            "INSERT INTO chunk_vector (session_key, position, part, tenant_id, model,"
            " from_character, to_character, embedding)"
            " SELECT c.session_key, c.position, 0, c.tenant_id, %s, 0, 1, pool.embedding"
            " FROM chunk c JOIN session s USING (session_key)"
            " JOIN pool ON pool.number = c.position * 7919 %% %s WHERE s.name = 'chunks'",
            (MODEL, POOL),
        )
        connection.execute(made)
        connection.execute(
            "UPDATE session SET embedded_position = head, embedding_model = %s"
            " WHERE name = 'chunks'",
            (MODEL,),
        )
        connection.execute("VACUUM ANALYZE chunk_vector, session")
        connection.execute("CHECKPOINT")


async def _embedding_ms(embedder: LocalEmbedder) -> float:
    asked = [query for kind in KINDS for query in queries(kind)[:10]]
    times = []
    for query in asked:
        start = time.perf_counter()
        await embedder.embed_query(query, scope=None)  # type: ignore[arg-type] # it costs nothing
        times.append(time.perf_counter() - start)
    return round(statistics.median(times) * 1000, 1)


async def _measure(
    address: str, url: str, session: str, seconds: float, embedder: LocalEmbedder | None = None
) -> dict[str, Any]:
    replay = _Replay(url, session, embedder)
    asked = [query for each in zip(*map(queries, KINDS), strict=True) for query in each]
    times: dict[str, list[float]] = {"recall": [], "bare": []}
    tokens, statements = 0, 0
    async with palimpsest.connect(address) as client:
        stub = session_service_pb2_grpc.SessionServiceStub(client.channel)

        async def recall(query: str) -> session_service_pb2.RecallResponse:
            request = session_service_pb2.RecallRequest(
                session=session, query=query, max_tokens=TOKENS
            )
            found: session_service_pb2.RecallResponse = await stub.Recall(request)
            return found

        begun, number = time.monotonic(), 0
        while number < len(asked) or time.monotonic() < begun + seconds:
            query = asked[number % len(asked)]
            number += 1
            if embedder is not None:
                # The server keeps its vector.
                found = await recall(query)
                if found.mode != session_service_pb2.SEARCH_MODE_HYBRID:
                    raise SystemExit(f"not searched by vectors: {found.index.failure}")
            replayed = await replay.recorded(query)
            statements = len(replayed)
            for name in ("recall", "bare") if number % 2 else ("bare", "recall"):
                start = time.perf_counter()
                if name == "recall":
                    tokens = (await recall(query)).tokens
                else:
                    await replay.run(replayed)
                if number > WARM:
                    times[name].append(time.perf_counter() - start)
    await replay.close()
    ratio = statistics.median(times["recall"]) / statistics.median(times["bare"])
    return {
        "p50_ms": _percentile(times["recall"], 50),
        "p95_ms": _percentile(times["recall"], 95),
        "ratio": round(ratio, 2),
        "bare_p50_ms": _percentile(times["bare"], 50),
        "bare_p95_ms": _percentile(times["bare"], 95),
        "statements": statements,
        "recalls": len(times["recall"]),
        "tokens": tokens,
    }


def _percentile(times: Sequence[float], percent: int) -> float:
    cuts = statistics.quantiles(times, n=100, method="inclusive")
    return round(cuts[percent - 1] * 1000, 1)


class _Replay:
    """Runs the statements of recalls without the service."""

    def __init__(self, url: str, session: str, embedder: LocalEmbedder | None) -> None:
        self._database = Database.connect(url, pool_size=4, name="bench-recall")
        self._session = session
        config = Config()
        watcher = ProgressWatcher(self._database)
        wake_ups = WakeUps(_no_work)
        searcher = Searcher(self._database, embedder, _no_rerank, config)
        self._recaller = Recaller(
            self._database,
            ConsistentSearch(self._database, searcher, watcher, b"key"),
            memories_of(self._database, wake_ups, watcher, b"key", Limits()),
            b"key",
            config,
        )

    async def recorded(self, query: str) -> Sequence[tuple[Any, Any, dict[str, Any]]]:
        """Returns the statements of a recall, with their values, and whether they are prepared."""
        wanted = RecallQuery(query=query, max_tokens=TOKENS)
        statements: list[tuple[Any, Any, dict[str, Any]]] = []
        execute = psycopg.AsyncCursor.execute

        async def recording(cursor: Any, query: Any, params: Any = None, **named: Any) -> Any:
            statements.append((query, params, named))
            return await execute(cursor, query, params, **named)

        with patch.object(psycopg.AsyncCursor, "execute", recording):
            await self._recaller.recall(
                DEFAULT_TENANT, self._session, wanted, Consistency(), deadline=None
            )
        return statements

    async def run(self, statements: Sequence[tuple[Any, Any, dict[str, Any]]]) -> None:
        """Runs them in one transaction of the application's role: some are settings of theirs."""
        async with self._database.transaction(DEFAULT_TENANT, name="bench") as tx:
            for statement, values, named in statements:
                cursor = tx.driver.cursor()
                await cursor.execute(statement, values, **named)
                if cursor.description:
                    await cursor.fetchall()

    async def close(self) -> None:
        await self._database.close()


async def _no_rerank(*_: Any, **__: Any) -> Any:
    raise AssertionError("no recall wants it")


async def _no_work(_: Any) -> None:
    raise AssertionError("no recall makes work")
