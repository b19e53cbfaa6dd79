"""Measures how long a search by words takes in one long session, against a short one.

Two sessions of made-up chunks, 10,000 and 1,000,000 (`--small`, `--large`), are indexed as a
worker does it, and searched by the same queries in turns: for one common word, several common
ones, common ones with a rare one, and a rare one. `value` is the largest of the four quotients
of the 95th percentiles, large by small. `while_indexing_p95_ms` is that of searches while the
words of a third session of `--behind` chunks are written by another process, from the first to
the last. Besides: bytes of the index and of WAL a chunk, and chunks indexed a second.

A word is as frequent as its rank says (Zipf), chunks have 5 to 95 words, and hardly two chunks
are equal.
"""

import argparse
import asyncio
import random
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

import psycopg

from service.domain.calls.ledger import CallScope
from service.domain.values.tenancy import DEFAULT_TENANT, session_key
from service.domain.values.work_items import WorkItem, WorkKind
from service.settings.config import Config
from service.usecases.search.index import Indexer
from service.usecases.search.search import Searcher, SearchMode, SearchQuery
from storage.engine.database import Database
from storage.search import setup
from tests.support.harness import Servers

SMALL, LARGE, BEHIND = 10_000, 1_000_000, 100_000
#: Each query of a kind, at least; half as many warm up.
TIMES = 40
GOAL = 3
GOAL_MS = 2000
#: Words that there are, the most frequent first, and the weights of their ranks.
VOCABULARY = [
    first + second + third
    for first in (
        "ba",
        "de",
        "fi",
        "go",
        "ku",
        "la",
        "me",
        "ni",
        "po",
        "ru",
        "sa",
        "te",
        "vi",
        "zo",
    )
    for second in ("", "bra", "cle", "dri", "flo", "gru", "pla", "sne", "tri", "sto", "wu", "xe")
    for third in (
        a + b for a in "bcdfghjklmnpqrtvwxz" for b in ("ax", "ex", "ix", "ox", "ux", "ok")
    )
]
WEIGHTS = [1 / rank for rank in range(1, len(VOCABULARY) + 1)]
#: A chunk is put together from two of these.
HALVES = 20_000
#: Rows written by one statement.
AT_ONCE = 50_000
#: Ranks that a query takes its common and its rare words from.
COMMON, RARE = range(2, 30), range(3000, len(VOCABULARY))
KINDS = {"common": (1, 0), "several": (4, 0), "mixed": (2, 1), "rare": (0, 1)}
_INDEX = "SELECT sum(pg_total_relation_size(t)) FROM unnest(%s::regclass[]) AS t"
_TABLES = ("chunk_word", "posting_block", "posting_list")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options for the sizes of the sessions."""
    parser.add_argument("--small", type=int, default=SMALL, help="chunks of the short session")
    parser.add_argument("--large", type=int, default=LARGE, help="chunks of the long session")
    parser.add_argument("--behind", type=int, default=BEHIND, help="chunks indexed meanwhile")


def run(seconds: float, *, small: int, large: int, behind: int) -> dict[str, Any]:
    """Measures; see the module."""
    with Servers.started() as servers:
        url = servers.new_database()
        setup.install(url)
        superuser = servers.as_superuser(url)
        sizes = {"small": small, "large": large, "behind": behind}
        for name, chunks in sizes.items():
            fill(superuser, name, chunks)
        indexed = {name: index_all(url, superuser, name) for name in ("small", "large")}
        with psycopg.connect(superuser, autocommit=True) as connection:
            connection.execute("VACUUM ANALYZE")
            connection.execute("CHECKPOINT")
        measured = asyncio.run(_measure(url, seconds))
        meanwhile = asyncio.run(_while_indexing(url))
    ratios = {
        kind: round(measured["large"][kind][1] / measured["small"][kind][1], 2) for kind in KINDS
    }
    return {
        "value": max(ratios.values()),
        "goal": f"<= {GOAL}",
        "ratios": ratios,
        "while_indexing": meanwhile,
        "while_indexing_goal_ms": GOAL_MS,
        **{f"{name}_p50_p95_ms": of for name, of in measured.items()},
        "indexing": indexed,
        "chunks": sizes,
    }


_CHUNKS = """
INSERT INTO chunk (session_key, position, tenant_id, producer_id, producer_sequence, kind, role,
    text, observation, thought, action, digest)
SELECT %(key)s, at, %(tenant)s, 'p', at, 'text', '', one.text || ' ' || other.text, '', '', '', ''
FROM generate_series(%(first)s::bigint, %(last)s::bigint) AS at
JOIN half AS one ON one.number = at * 7919 %% %(halves)s
JOIN half AS other ON other.number = (at * 104729 + at / %(halves)s * 31 + 17) %% %(halves)s
"""


def fill(superuser_url: str, name: str, chunks: int) -> None:
    """Makes a session with chunks that are not in the index."""
    chance = random.Random(1)
    values = {"key": session_key(DEFAULT_TENANT, name), "tenant": DEFAULT_TENANT, "name": name}
    with psycopg.connect(superuser_url, autocommit=True) as connection:
        # Foreign keys hold by construction; to check each row takes most of the time.
        connection.execute("SET session_replication_role = replica")
        connection.execute("SET synchronous_commit = off")
        connection.execute("CREATE TEMP TABLE half (number integer PRIMARY KEY, text text)")
        with connection.cursor().copy("COPY half (number, text) FROM STDIN") as copy:
            for number in range(HALVES):
                words = chance.choices(VOCABULARY, WEIGHTS, k=2 + int(chance.random() ** 2 * 46))
                copy.write_row((number, " ".join(words)))
        connection.execute("ANALYZE half")
        connection.execute(
            "INSERT INTO session (session_key, tenant_id, name, head, has_unindexed)"
            " VALUES (%(key)s, %(tenant)s, %(name)s, %(head)s, true)",
            {**values, "head": chunks},
        )
        connection.execute(
            "INSERT INTO producer (session_key, producer_id, tenant_id, epoch, last_sequence)"
            " VALUES (%(key)s, 'p', %(tenant)s, 0, %(head)s)",
            {**values, "head": chunks},
        )
        for first in range(1, chunks + 1, AT_ONCE):
            last = min(first + AT_ONCE - 1, chunks)
            rows = {**values, "first": first, "last": last, "halves": HALVES}
            connection.execute(_CHUNKS, rows)
        connection.execute("ANALYZE chunk")


def index_all(url: str, superuser_url: str, name: str) -> dict[str, float]:
    """Indexes a session; chunks a second, and bytes a chunk of the index and of WAL."""
    with psycopg.connect(superuser_url, autocommit=True) as connection:

        def one(query: str, *values: object) -> Any:
            row = connection.execute(query, values).fetchone()
            assert row is not None
            return row[0]

        known = [table for table in _TABLES if one("SELECT to_regclass(%s)", table)]
        bytes_before, wal = one(_INDEX, known), one("SELECT pg_current_wal_lsn()")
        start = time.perf_counter()
        asyncio.run(_index(url, name))
        took = time.perf_counter() - start
        # What an index holds back until it is cleaned up is in neither figure else.
        connection.execute("VACUUM chunk_word")
        chunks = one("SELECT head FROM session WHERE name = %s", name)
        written = one("SELECT pg_current_wal_lsn() - %s::pg_lsn", wal)
        return {
            "chunks_per_second": round(chunks / took),
            "bytes_a_chunk": round(float(one(_INDEX, known) - bytes_before) / chunks),
            "wal_bytes_a_chunk": round(float(written) / chunks),
        }


async def _index(url: str, name: str) -> None:
    database = Database.connect(url, pool_size=2, name="bench-index")
    key = session_key(DEFAULT_TENANT, name)
    item = WorkItem(kind=WorkKind.INDEX, tenant_id=DEFAULT_TENANT, session_key=key, item_id=key)
    try:
        while await Indexer(database, None, Config()).index(item) is not None:
            pass
    finally:
        await database.close()


def queries(kind: str) -> list[str]:
    """Returns the same for all sessions."""
    chance = random.Random(kind)
    common, rare = KINDS[kind]
    return [
        " ".join(
            VOCABULARY[rank] for rank in chance.sample(COMMON, common) + chance.sample(RARE, rare)
        )
        for _ in range(TIMES)
    ]


class _Searches:
    def __init__(self, url: str) -> None:
        self._database = Database.connect(url, pool_size=2, name="bench-search")
        self._searcher = Searcher(self._database, None, _no_rerank, Config())

    async def took(self, name: str, query: str) -> float:
        key = session_key(DEFAULT_TENANT, name)
        scope = CallScope(
            tenant_id=DEFAULT_TENANT, session_key=key, memory_id=None, occasion="bench"
        )
        asked = SearchQuery(query=query, mode=SearchMode.WORDS)
        start = time.perf_counter()
        await self._searcher.search(DEFAULT_TENANT, key, asked, scope=scope)
        return time.perf_counter() - start

    async def indexed(self, name: str) -> int:
        return (await self._searcher.index(DEFAULT_TENANT, name)).indexed_position

    async def close(self) -> None:
        await self._database.close()


async def _no_rerank(*_: Any, **__: Any) -> Any:
    raise AssertionError("no search of these wants it")


async def _measure(url: str, seconds: float) -> dict[str, dict[str, tuple[float, float]]]:
    searches = _Searches(url)
    times: dict[str, dict[str, list[float]]] = {
        name: {kind: [] for kind in KINDS} for name in ("small", "large")
    }
    try:
        for is_warm in (False, True):
            until = time.monotonic() + (seconds if is_warm else 0)
            while not is_warm or time.monotonic() < until or not times["large"]["common"]:
                for kind in KINDS:
                    for query in queries(kind)[: None if is_warm else TIMES // 2]:
                        for name in times:
                            took = await searches.took(name, query)
                            if is_warm:
                                times[name][kind].append(took)
                if not is_warm:
                    break
    finally:
        await searches.close()
    return {
        name: {kind: _percentiles(one) for kind, one in of.items()} for name, of in times.items()
    }


async def _while_indexing(url: str) -> dict[str, float]:
    """Searches of the third session while another process writes its words."""
    searches = _Searches(url)
    asked = [query for each in zip(*map(queries, KINDS), strict=True) for query in each]
    times: list[float] = []
    begun = time.monotonic()
    worker = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "verification.benchmarks.session_search", url, "behind"
    )
    try:
        while worker.returncode is None:
            times.append(await searches.took("behind", asked[len(times) % len(asked)]))
        took = time.monotonic() - begun
        indexed = await searches.indexed("behind")
    finally:
        await worker.wait()
        await searches.close()
    if worker.returncode:
        raise SystemExit("the process that indexes has failed")
    p50, p95 = _percentiles(times)
    return {
        "p50_ms": p50,
        "p95_ms": p95,
        "most_ms": round(max(times) * 1000, 1),
        "searches": len(times),
        "chunks": indexed,
        "seconds": round(took, 1),
    }


def _percentiles(times: Sequence[float]) -> tuple[float, float]:
    """Returns the median and the 95th, in milliseconds."""
    cuts = statistics.quantiles(times, n=20, method="inclusive")
    return round(cuts[9] * 1000, 1), round(cuts[18] * 1000, 1)


if __name__ == "__main__":
    asyncio.run(_index(sys.argv[1], sys.argv[2]))
