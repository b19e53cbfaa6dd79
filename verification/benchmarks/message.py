"""Measures what a message costs PostgreSQL until its memory has it, and what memories cost.

Sessions with one PRISM memory each, the offline model, one worker. `value` is the bytes of
write-ahead log for a message that is appended, applied and indexed, in steady state: no page is
written to for the first time since a checkpoint. Beside it: the same right after a checkpoint,
which of it is the queue's, what each table takes of it, how many updates were HOT, the CPU of
PostgreSQL, and the bytes of a session of one message, table by table.

Then appends to a session of 64 memories against one of 1, alternating: once while a worker applies
them, and without one once all memories have work already, once all are idle. And CreateMemory: how
many a second, and what each costs the API.

Autovacuum is off meanwhile, so that each run has the same work. `--statements` prints the
statements that took the most time to standard error (pg_stat_statements).
"""

import argparse
import asyncio
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import psycopg

import palimpsest
from tests.support.harness import Process, Servers, api, worker
from verification.benchmarks.calls import cpu_seconds
from verification.benchmarks.load_meters import load_average, percentiles
from verification.benchmarks.load_stack import count_behind, one, wait_until

#: What `value` was on 23 November 2026, before any of it was fixed (60 sessions, 2 rounds).
BEFORE_BYTES = 14_230
SCHEMA = "class Notes:\n    topics: dict[str, str]\n"
#: Messages that are sent at once.
AT_ONCE = 8
#: Sessions, and how many memories each has.
SIZES = {"1": 1, "64": 64}
#: Appends of each kind for the two sessions, and the pauses between them while a worker applies.
APPENDS = 100
APPLYING_SECONDS = 0.1
MAX_SECONDS = 900.0
_TEXT = (
    "The schooner Aurora of round {0} lies in harbour {1}. Captain Ines Duarte wants her hull"
    " painted before the autumn storms, and the pilot agreed to wait until Thursday."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options for the sizes."""
    parser.add_argument("--sessions", type=int, default=200, help="with a memory each")
    parser.add_argument("--rounds", type=int, default=3, help="a message for each session")
    parser.add_argument("--statements", action="store_true", help="tell what each took")


def run(seconds: float, *, sessions: int, rounds: int, statements: bool) -> dict[str, Any]:
    """Measures; see the module. Takes as long as it takes."""
    with Servers.started() as servers, asyncio.Runner() as runner:
        _tune(servers, statements=statements)
        url = servers.new_database()
        settings = {**servers.redis_settings(), "PALIMPSEST_LOG_LEVEL": "error"}
        with (
            api(url, **settings) as (server, address),
            psycopg.connect(servers.as_superuser(url), autocommit=True) as connection,
        ):
            connection.execute("CREATE EXTENSION pg_walinspect")
            if statements:
                connection.execute("CREATE EXTENSION pg_stat_statements")
            # As a database that was unused for a while: plans made now are bad.
            connection.execute("ANALYZE")
            client = runner.run(_connect(address))
            names = [f"m-{number}" for number in range(sessions)]
            before = _sizes(connection)
            made = runner.run(_make(client, server, names))
            with worker(url, **settings):
                meter = _Meter(connection, servers, client, runner, names)
                meter.round()
                stored = _stored(before, _sizes(connection), sessions)
                for _ in range(2):
                    meter.round()
                connection.execute("CHECKPOINT")
                fresh = meter.measured(1)
                steady = meter.measured(rounds)
                if statements:
                    print("\n".join(_statements(connection)), file=sys.stderr, flush=True)
                runner.run(_grow(client))
                appends = {"applying": runner.run(_appends(client, connection, None))}
            for state, has_work in (("busy", True), ("idle", False)):
                appends[state] = runner.run(_appends(client, connection, has_work))
            runner.run(client.close())
    return {
        "value": steady["wal_bytes"],
        "goal": f"<= {BEFORE_BYTES // 2}",
        "steady": steady,
        "behind_a_checkpoint": fresh,
        "stored_bytes_a_session": stored,
        "append_64_to_1": {"goal": "<= 1.5", **appends},
        "create_memory": made,
        "sessions": sessions,
        "load_average": load_average(),
    }


def _tune(servers: Servers, *, statements: bool) -> None:
    settings = {"autovacuum": "off", "checkpoint_timeout": "1h"}
    if statements:
        settings |= {
            "shared_preload_libraries": "pg_stat_statements",
            "pg_stat_statements.track": "all",
            "pg_stat_statements.track_planning": "on",
        }
    with psycopg.connect(servers.postgres.superuser_url, autocommit=True) as connection:
        for name, value in settings.items():
            connection.execute(f"ALTER SYSTEM SET {name} = '{value}'")
    servers.postgres.stop()
    servers.postgres.start()


async def _connect(address: str) -> palimpsest.Client:
    return await palimpsest.connect(address).__aenter__()


def _postmaster(servers: Servers) -> int:
    process = servers.postgres._process
    assert process is not None, "it runs"
    return process.pid


async def _make(
    client: palimpsest.Client, server: Process, names: Sequence[str]
) -> dict[str, float]:
    """Makes sessions, and then a memory in each, which is measured."""
    await _each(names, client.create_session)
    begun, cpu = time.perf_counter(), cpu_seconds(server.pid)
    await _each(
        names, lambda name: client.session(name).create_memory("notes", schema_source=SCHEMA)
    )
    return {
        "a_second": round(len(names) / (time.perf_counter() - begun), 1),
        "goal_a_second": 400,
        "api_cpu_ms": round((cpu_seconds(server.pid) - cpu) / len(names) * 1000, 2),
    }


async def _each(names: Sequence[str], do: Callable[[str], Any]) -> None:
    left = iter(names)

    async def some() -> None:
        for name in left:
            await do(name)

    await asyncio.gather(*(some() for _ in range(AT_ONCE)))


class _Meter:
    """Sends messages, and measures their cost."""

    def __init__(
        self,
        connection: psycopg.Connection[Any],
        servers: Servers,
        client: palimpsest.Client,
        runner: asyncio.Runner,
        names: Sequence[str],
    ) -> None:
        self._connection = connection
        self._postmaster = _postmaster(servers)
        self._client = client
        self._runner = runner
        self._names = names
        self._round = 0

    def round(self) -> None:
        """A message for each session, until it is applied and indexed."""
        self._round += 1
        text = _TEXT.format(self._round, self._round % 7)
        self._runner.run(_each(self._names, lambda name: self._client.session(name).append(text)))
        wait_until("all is applied and indexed", self._is_done, MAX_SECONDS)

    def _is_done(self) -> bool:
        left = one(self._connection, "SELECT count(*) FROM session WHERE has_unindexed")
        return not left and not count_behind(self._connection)

    def measured(self, rounds: int) -> dict[str, Any]:
        """Returns what each message of some rounds took."""
        at, cpu = self._place(), cpu_seconds(self._postmaster)
        updates = _updates(self._connection)
        for _ in range(rounds):
            self.round()
        end, messages = self._place(), rounds * len(self._names)
        spent = cpu_seconds(self._postmaster) - cpu
        return {**self._wal(at, end, messages)} | {
            "postgres_cpu_ms": round(spent / messages * 1000, 2),
            "hot": _hot(updates, _updates(self._connection)),
        }

    def _place(self) -> str:
        # After what the server's writer has still to write, and the collector to hear.
        time.sleep(1.5)
        return str(one(self._connection, "SELECT pg_current_wal_flush_lsn()"))

    def _wal(self, at: str, end: str, messages: int) -> dict[str, Any]:
        def each(number: float) -> int:
            return round(float(number) / messages)

        whole = one(self._connection, "SELECT %s::pg_lsn - %s::pg_lsn", (end, at))
        rows = self._connection.execute(_WAL, {"at": at, "end": end}).fetchall()
        tables = {
            str(name): (each(size), each(images), round(int(records) / messages, 2))
            for name, size, images, records in rows
        }
        queue = sum(size for name, (size, _, _) in tables.items() if _is_queue(name))
        return {
            "wal_bytes": each(whole),
            "queue_bytes": queue,
            "without_queue_bytes": each(whole) - queue,
            "page_images_bytes": sum(images for _, images, _ in tables.values()),
            "tables": {
                name: f"{size} B, {records} records" for name, (size, _, records) in tables.items()
            },
        }


def _is_queue(name: str) -> bool:
    # None of the three has a write-ahead log.
    return name.startswith(("claim", "wanted", "worker"))


# By the first page that a record is about; of a record without any, by its kind.
_WAL = """
SELECT coalesce(own.relname || coalesce('/' || i.relname, ''), '(' || w.resource_manager || ')'),
    sum(w.record_length), sum(w.fpi_length), count(*)
FROM pg_get_wal_records_info(%(at)s, %(end)s) w
LEFT JOIN pg_get_wal_block_info(%(at)s, %(end)s, false) b
    ON b.start_lsn = w.start_lsn AND b.block_id = 0
LEFT JOIN pg_class c ON pg_relation_filenode(c.oid) = b.relfilenode
LEFT JOIN pg_index x ON x.indexrelid = c.oid
LEFT JOIN pg_class i ON i.oid = x.indexrelid
LEFT JOIN pg_class t ON t.oid = coalesce(x.indrelid, c.oid)
LEFT JOIN pg_class o ON o.reltoastrelid = t.oid
LEFT JOIN pg_class own ON own.oid = coalesce(o.oid, t.oid)
GROUP BY 1 ORDER BY 2 DESC
"""

_SIZES = """
SELECT relname, pg_total_relation_size(oid) FROM pg_class
WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace
"""

_UPDATES = "SELECT relname, n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE n_tup_upd > 0"

_SPENT = """
SELECT calls, round(total_plan_time::numeric), round(total_exec_time::numeric), wal_bytes,
    toplevel, left(regexp_replace(query, '\\s+', ' ', 'g'), 110)
FROM pg_stat_statements
WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database())
ORDER BY total_plan_time + total_exec_time DESC LIMIT 70
"""


def _statements(connection: psycopg.Connection[Any]) -> Iterator[str]:
    yield "calls, ms of planning, ms of running, bytes of WAL, whether sent by a client"
    for row in connection.execute(_SPENT):
        yield "  ".join(map(str, row))


def _sizes(connection: psycopg.Connection[Any]) -> dict[str, int]:
    return dict(connection.execute(_SIZES).fetchall())


def _stored(before: dict[str, int], after: dict[str, int], sessions: int) -> dict[str, int]:
    grown = {name: round((size - before[name]) / sessions) for name, size in after.items()}
    ours = {name: size for name, size in grown.items() if size and not _is_queue(name)}
    return {"all": sum(ours.values()), **dict(sorted(ours.items(), key=lambda one: -one[1]))}


def _updates(connection: psycopg.Connection[Any]) -> dict[str, tuple[int, int]]:
    rows = connection.execute(_UPDATES).fetchall()
    return {name: (updated, hot) for name, updated, hot in rows}


def _hot(before: dict[str, tuple[int, int]], after: dict[str, tuple[int, int]]) -> dict[str, str]:
    """Returns how many of the updates of each table were HOT."""
    found = {}
    for name, (updated, hot) in after.items():
        updated_before, hot_before = before.get(name, (0, 0))
        if (number := updated - updated_before) and not _is_queue(name):
            found[name] = f"{hot - hot_before} of {number}"
    return found


_REST = """
UPDATE memory SET has_work = %s
WHERE session_key = (SELECT session_key FROM session WHERE name = %s)
"""


async def _grow(client: palimpsest.Client) -> None:
    """Makes a session of one memory and one of many."""
    for name, memories in SIZES.items():
        session = await client.create_session(name)
        await session.append(_TEXT)
        for number in range(memories):
            await session.create_memory(f"notes-{number}", schema_source=SCHEMA)


async def _appends(
    client: palimpsest.Client, connection: psycopg.Connection[Any], has_work: bool | None
) -> dict[str, Any]:
    """Appends to both in turn; before each append, sets whether their memories have work."""
    took: dict[str, list[float]] = {name: [] for name in SIZES}
    for number in range(APPENDS):
        for name in SIZES:
            if has_work is None:
                # Steps continue meanwhile, and have something to do.
                await asyncio.sleep(APPLYING_SECONDS)
            else:
                connection.execute(_REST, (has_work, name))
            begun = time.perf_counter()
            await client.session(name).append(_TEXT.format(number, 0))
            # The first few are planned anew.
            if number >= APPENDS // 10:
                took[name].append(time.perf_counter() - begun)
    few, many = (percentiles(took[name]) for name in SIZES)
    return {
        "p95": round(many["p95_ms"] / few["p95_ms"], 2),
        "p50": round(many["p50_ms"] / few["p50_ms"], 2),
        "few": few,
        "many": many,
    }
