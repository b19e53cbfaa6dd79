"""Measures a search over gRPC against the same retrieval as bare SQL.

A million chunks in a thousand sessions, each search in one of them: words and vectors,
fused, the ten best with their texts. `value` is the median of SearchChunks divided by that
of one hand-written statement that does the same over psycopg; `p95` the same of the
slowest twentieth. The two take turns.

Texts and vectors are synthetic. The server is a process with the service's own handlers and
interceptors and an embedder that knows the query's vector: embedding takes as long as the
model takes, with or without the service.
"""

import argparse
import asyncio
import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import psycopg
import uvloop
from grpc import aio

from palimpsest.v1 import session_service_pb2, session_service_pb2_grpc
from service.app.kinds import memories_of, use_cases
from service.domain.calls.ledger import CallScope
from service.domain.search.fusing import JUDGED_HITS, LEADERS, MIN_AGREEMENT, MIN_LEAD
from service.domain.values.memory_specs import DefaultMemory
from service.domain.values.tenancy import DEFAULT_TENANT, session_key
from service.domain.values.work_items import WorkItem
from service.rpc.interceptors.authentication import Authentication
from service.rpc.interceptors.errors import Errors
from service.rpc.interceptors.telemetry import Telemetry
from service.rpc.interceptors.validation import Validation
from service.rpc.pages import Pages
from service.rpc.session_service import SessionService
from service.settings.config import Config, Limits
from service.usecases.log.append import Appender
from service.usecases.log.wake_ups import WakeUps
from service.usecases.memories.progress_watcher import ProgressWatcher
from service.usecases.operations.deleting import Deleter
from service.usecases.operations.exporting import Exporter
from service.usecases.operations.importing import Importer
from service.usecases.operations.redacting import Redactor
from service.usecases.search.consistent import ConsistentSearch
from service.usecases.search.memories import MemorySearch
from service.usecases.search.recall import Recaller
from service.usecases.search.search import DEPTH, VECTORS_WEIGHT, WORDS_WEIGHT, Searcher
from storage.engine.database import Database
from storage.log.ranges import Range
from storage.search import setup
from storage.search.finding import SearchPlace
from storage.search.vectors import vectors_query
from storage.search.words import UnindexedChunks, word_values, words_query
from tests.support.harness import Servers
from verification.benchmarks.search_rows import (
    MODEL,
    SIZE,
    by_chance,
    fill,
    finish,
    query_by_chance,
)

SESSIONS = 1000
CHUNKS = 1000
LIMIT = 10
WORDS = 4
WARM = 50


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of this benchmark's own."""
    parser.add_argument("--sessions", type=int, default=SESSIONS, help="how many there are")
    parser.add_argument("--chunks", type=int, default=CHUNKS, help="of each session")


def run(seconds: float, *, sessions: int = SESSIONS, chunks: int = CHUNKS) -> dict[str, Any]:
    """Measures; see the module."""
    with Servers.started() as servers:
        url = servers.new_database()
        superuser = servers.as_superuser(url)
        start = time.monotonic()
        fill(superuser, sessions, chunks)
        support = setup.install(url)
        if support.vectors_unavailable:
            raise SystemExit(f"cannot measure: {support.vectors_unavailable}")
        finish(superuser)
        filled = time.monotonic() - start
        print(f"filled in {filled:.0f} s", file=sys.stderr)
        server = subprocess.Popen(
            [sys.executable, "-m", "verification.benchmarks.search", url],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert server.stdout is not None
        try:
            address = f"127.0.0.1:{int(server.stdout.readline())}"
            measured = asyncio.run(_measure(address, url, sessions, chunks, seconds))
        finally:
            server.kill()
            server.wait()
            server.stdout.close()
    return {
        **measured,
        "sessions": sessions,
        "chunks": sessions * chunks,
        "filled_s": round(filled),
    }


async def _measure(
    address: str, url: str, sessions: int, chunks: int, seconds: float
) -> dict[str, Any]:
    chance = random.Random(2)
    bare = await psycopg.AsyncConnection.connect(url, autocommit=True)
    await bare.execute("SET ROLE palimpsest_app")
    await bare.execute(f"SET app.tenant = '{DEFAULT_TENANT}'")
    vector = _vector()
    times: dict[str, list[float]] = {"search": [], "bare": []}
    same = 0
    async with aio.insecure_channel(address) as channel:
        stub = session_service_pb2_grpc.SessionServiceStub(channel)
        until = time.monotonic() + seconds
        number = 0
        while number < WARM or time.monotonic() < until:
            session, query = f"s{chance.randrange(sessions)}", query_by_chance(chance, WORDS)
            words = await _words(bare, query)
            request = session_service_pb2.SearchChunksRequest(
                session=session,
                query=query,
                limit=LIMIT,
                mode=session_service_pb2.SEARCH_MODE_HYBRID,
            )

            async def search(request: Any = request) -> list[int]:
                response = await stub.SearchChunks(request)
                return [one.chunk.position for one in response.results]

            async def by_hand(session: str = session, words: Any = words) -> list[int]:
                return await _bare(bare, session, words, vector, chunks)

            # The first reads pages that the second finds read.
            jobs: list[tuple[str, Callable[[], Awaitable[list[int]]]]] = [
                ("search", search),
                ("bare", by_hand),
            ]
            found: dict[str, list[int]] = {}
            for name, job in jobs if number % 2 else jobs[::-1]:
                begin = time.perf_counter()
                found[name] = await job()
                if number >= WARM:
                    times[name].append(time.perf_counter() - begin)
            same += found["search"] == found["bare"]
            number += 1
            if number == WARM:
                until = time.monotonic() + seconds
    await bare.close()
    return _figures(times, same / number)


def _figures(times: dict[str, list[float]], same: float) -> dict[str, Any]:
    def of(name: str, share: float) -> float:
        return statistics.quantiles(times[name], n=100)[round(share * 100) - 1]

    return {
        "value": round(of("search", 0.5) / of("bare", 0.5), 2),
        "p95": round(of("search", 0.95) / of("bare", 0.95), 2),
        "goal": "<= 3",
        "searches": len(times["search"]),
        # How often both have the ten best in the same order.
        "same_results": round(same, 3),
        **{
            f"{name}_p{round(share * 100)}_ms": round(of(name, share) * 1000, 2)
            for name in times
            for share in (0.5, 0.95)
        },
    }


def _vector() -> list[float]:
    return by_chance(random.Random(3))


async def _words(bare: "psycopg.AsyncConnection[Any]", query: str) -> tuple[str, ...]:
    rows = await bare.execute(
        "SELECT lexeme FROM unnest(to_tsvector('english', %s)) ORDER BY positions[1]", (query,)
    )
    return tuple(row[0] for row in await rows.fetchall())


async def _bare(
    bare: "psycopg.AsyncConnection[Any]",
    session: str,
    words: tuple[str, ...],
    vector: list[float],
    chunks: int,
) -> list[int]:
    """Returns the retrieval in one statement, with nothing of a service about it."""
    place = SearchPlace(
        head=chunks,
        indexed_position=chunks,
        embedded_position=chunks,
        embedding_model=MODEL,
        language="english",
        failure="",
        words=words,
    )
    within = Range(from_position=1, to_position=chunks)
    statement = f"""
    WITH word AS (
        SELECT position, row_number() OVER (ORDER BY score DESC, position) AS rank,
            score / max(score) OVER () AS score
        FROM ({words_query(place, within, UnindexedChunks())}) AS ranked
    ), near AS (
        SELECT position, row_number() OVER (ORDER BY score DESC, position) AS rank,
            (score - min(score) OVER ()) / (max(score) OVER () - min(score) OVER ()) AS score
        FROM (
            SELECT * FROM ({vectors_query(vector, within, by_index=False)}) AS found
                (position, score, from_character, to_character, parts, spread)
            ORDER BY score DESC, position LIMIT {DEPTH}
        ) AS ranked
    ), agreement AS (
        SELECT {MIN_AGREEMENT} + {1 - MIN_AGREEMENT} * CASE WHEN count(*) >= {JUDGED_HITS}
            THEN greatest(coalesce(corr(word.score, coalesce(near.score, 0)), 0), 0)
            ELSE 0 END AS alike
        FROM word LEFT JOIN near USING (position)
    ), share AS (
        SELECT {WORDS_WEIGHT} * {_lead("word")} AS words,
            {VECTORS_WEIGHT} * {_lead("near")} * alike AS vectors
        FROM agreement
    )
    SELECT c.position, c.kind, c.role, c.text, c.observation, c.thought, c.action, c.metadata
    FROM (
        SELECT position, least(word.rank, near.rank) AS best,
            coalesce(words * word.score, 0) + coalesce(vectors * near.score, 0) AS score
        FROM word FULL JOIN near USING (position) CROSS JOIN share
    ) AS fused
    JOIN chunk c ON c.session_key = %(session)s AND c.position = fused.position
    ORDER BY score DESC, best, c.position LIMIT {LIMIT}
    """
    values = {
        "session": session_key(DEFAULT_TENANT, session),
        "model": MODEL,
        "vector": json.dumps(vector),
        "depth": DEPTH,
        # Each chunk has one part, so that no score is corrected.
        "parts": DEPTH,
        "tail_chunks": 0,
        "tail_words": 0,
        **within.values(),
        **word_values(words),
    }
    rows = await bare.execute(statement, values, prepare=False)
    return [row[0] for row in await rows.fetchall()]


def _lead(ranking: str) -> str:
    mean = f"SELECT sum(score) / {LEADERS} FROM {ranking} WHERE rank <= {LEADERS}"
    return f"greatest({MIN_LEAD}, 1 - ({mean}))"


class _AtHand:
    """An embedder that has the vector of every query."""

    model = MODEL
    dimensions = SIZE

    async def warm(self) -> None:
        """Nothing to load."""

    async def embed_chunks(self, texts: Any, *, scope: CallScope) -> Any:
        """Chunks have theirs."""
        raise NotImplementedError

    async def embed_query(self, text: str, *, scope: CallScope) -> tuple[float, ...]:
        """Always the same one."""
        return tuple(_VECTOR)


_VECTOR = _vector()


async def _no_rerank(*_: Any, **__: Any) -> Any:
    raise AssertionError("no search of these wants it")


async def _pass_on(items: Sequence[WorkItem]) -> None:
    raise AssertionError("no call of these makes work")


async def _serve(url: str) -> None:
    database = Database.connect(url, pool_size=4, name="bench-search")
    server = aio.server(interceptors=(Telemetry(), Errors(), Authentication(), Validation()))
    searcher = Searcher(database, _AtHand(), _no_rerank, Config())
    wake_ups = WakeUps(_pass_on)
    watcher = ProgressWatcher(database)
    search = ConsistentSearch(database, searcher, watcher, b"key")
    memories = memories_of(database, wake_ups, watcher, b"key", Limits())
    service = SessionService(
        database,
        Deleter(database, wake_ups),
        Redactor(database, wake_ups, b"key", max_chunks=1),
        search,
        Recaller(database, search, memories, b"key", Config()),
        MemorySearch(database, searcher, memories, b"key"),
        Appender(database, wake_ups, b"key", Limits()),
        Exporter(database),
        Importer(database, use_cases(), Limits()),
        Pages(b"key", Limits()),
        Limits(),
        language="english",
        default_memory=DefaultMemory.NONE,
        stopping=asyncio.Event(),
    )
    session_service_pb2_grpc.add_SessionServiceServicer_to_server(service, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    uvloop.run(_serve(sys.argv[1]))
