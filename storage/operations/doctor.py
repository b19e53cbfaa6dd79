"""Reads what the doctor checks: the server by any login, the tables in the application's role.

Within `seen`, missing rights are a StorageError.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
import sqlalchemy.exc
from redis.asyncio import Redis
from redis.exceptions import RedisError

from service.domain.operations.doctor import (
    INTENT_SECONDS,
    PENDING_SECONDS,
    STUCK_SECONDS,
    MemoryCounts,
)
from storage.engine import clocks
from storage.engine.database import Database, Transaction, first
from storage.engine.errors import StorageError, first_line, translated
from storage.engine.pooling import CONNECT_SECONDS
from storage.spend import sums

#: Memories of one kind that are reported by name.
NAMES = 100
#: Settings of PostgreSQL that are checked: durability of commits, and what is logged.
SETTINGS = (
    "server_version",
    "server_version_num",
    "fsync",
    "full_page_writes",
    "synchronous_commit",
    "log_error_verbosity",
    "log_min_duration_sample",
    "log_min_duration_statement",
    "log_parameter_max_length",
    "log_parameter_max_length_on_error",
    "log_statement",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerFacts:
    """A PostgreSQL server, as any login sees it."""

    version: str
    #: server_version_num: 150004 is 15.4.
    number: int
    #: The values of SETTINGS for a connection.
    settings: dict[str, str]
    #: Whether it follows a primary, whether it is configured to accept no writes, and how many
    #: commits of this login wait for a synchronous standby.
    is_standby: bool
    is_read_only: bool
    waiting_commits: int
    #: Versions of the database's extensions, by name.
    extensions: dict[str, str]
    #: Our clock less the server's, in seconds.
    clock_off_seconds: float
    round_trip_seconds: float


@contextmanager
def seen() -> Iterator[None]:
    """Raises StorageError also for missing rights and missing tables."""
    try:
        with translated():
            yield
    except (sqlalchemy.exc.SQLAlchemyError, psycopg.Error) as error:
        cause = error.orig if isinstance(error, sqlalchemy.exc.DBAPIError) else error
        raise StorageError(first_line(cause or error)) from error


_STANDING = """
SELECT pg_is_in_recovery(), current_setting('default_transaction_read_only') = 'on',
    (SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep')
"""


async def read_server(url: str) -> ServerFacts:
    """Reads the state of the server. Raises StorageError."""
    with seen():
        async with await psycopg.AsyncConnection.connect(
            url, connect_timeout=CONNECT_SECONDS, application_name="palimpsest-doctor"
        ) as connection:
            await connection.set_read_only(True)
            rows = await (
                await connection.execute(
                    "SELECT name, setting FROM pg_settings WHERE name = ANY(%s)", (list(SETTINGS),)
                )
            ).fetchall()
            made = await connection.execute("SELECT extname, extversion FROM pg_extension")
            extensions: dict[str, str] = dict(await made.fetchall())
            standing = await (await connection.execute(_STANDING)).fetchone()
            begun = time.time()
            clock = await connection.execute(clocks.NOW)
            row = await clock.fetchone()
            ended = time.time()
    assert row is not None, "a query without FROM has a row"
    assert standing is not None, "a query without FROM has a row"
    settings: dict[str, str] = dict(rows)
    return ServerFacts(
        version=settings.pop("server_version"),
        number=int(settings.pop("server_version_num")),
        settings=settings,
        is_standby=standing[0],
        is_read_only=standing[1],
        waiting_commits=standing[2],
        extensions=extensions,
        clock_off_seconds=(begun + ended) / 2 - row[0],
        round_trip_seconds=ended - begun,
    )


_OPEN_TABLES = """
SELECT c.relname::text FROM pg_class c
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = 'tenant_id' AND NOT a.attisdropped
WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p')
    AND NOT (c.relrowsecurity AND c.relforcerowsecurity
             AND EXISTS (SELECT FROM pg_policy p WHERE p.polrelid = c.oid))
ORDER BY 1
"""


async def open_tables(database: Database) -> tuple[str, ...]:
    """Returns tenants' tables without row-level security."""
    async with database.without_tenant(name="doctor") as tx:
        rows = await tx.fetch(_OPEN_TABLES, prepare=None)
    return tuple(row.relname for row in rows)


_MEMORIES = """
SELECT s.name || '/' || m.name AS name, m.status = 'stalled' AS is_stalled,
    m.status = 'active' AND m.held_reason IS NOT NULL AND m.ready_at > now() AS is_held,
    m.status = 'active' AND m.waiting_cause IS NOT NULL
        AND m.waiting_model IS NULL AS is_failing, m.waiting_cause,
    m.status = 'active' AND m.has_work AND NOT m.resting
        AND m.ready_at < now() - make_interval(secs => %(stuck)s)
        AND coalesce(r.created_at, m.created_at)
            < now() - make_interval(secs => %(stuck)s) AS is_stuck
FROM memory m
JOIN session s ON s.session_key = m.session_key
LEFT JOIN revision r ON r.session_key = m.session_key AND r.memory_id = m.memory_id
    AND r.revision = m.revision
WHERE m.status = 'stalled'
    OR (m.status = 'active' AND m.has_work AND m.ready_at > '-infinity')
ORDER BY 1
"""
# As the limit on appends counts it: see storage/log/chunks.py.
_BEHIND = """
SELECT s.name || '/' || m.name AS name,
    least(s.head, coalesce(m.seal_position, s.head)) - m.applied_position AS behind
FROM memory m JOIN session s ON s.session_key = m.session_key
WHERE m.status = 'active' AND m.has_work AND m.ready_at > '-infinity' AND NOT m.resting
ORDER BY 2 DESC, 1 LIMIT 1
"""


_CAUSES = """
SELECT cause, count(*) AS number FROM dead_letter WHERE resolution IS NULL
GROUP BY cause ORDER BY 2 DESC, 1 LIMIT 3
"""


async def read_memories(tx: Transaction) -> MemoryCounts:
    """Returns the state of the tenant's memories."""
    total = (await tx.fetch("SELECT count(*) FROM memory", prepare=None))[0][0]
    rows = await tx.fetch(_MEMORIES, {"stuck": STUCK_SECONDS}, prepare=None)
    causes = await tx.fetch(_CAUSES, prepare=None)
    last = first(await tx.fetch(_BEHIND, prepare=None))
    return MemoryCounts(
        total=total,
        stalled=_named(rows, "is_stalled"),
        causes=tuple((row.cause, row.number) for row in causes),
        held=_named(rows, "is_held"),
        failing=_named(rows, "is_failing"),
        failing_by=next((row.waiting_cause for row in rows if row.is_failing), ""),
        stuck=_named(rows, "is_stuck"),
        behind=0 if last is None else max(last.behind, 0),
        slowest="" if last is None else last.name,
    )


def _named(rows: Any, mark: str) -> tuple[str, ...]:
    return tuple(row.name for row in rows if getattr(row, mark))[:NAMES]


_LOSSES = """
SELECT s.name || '/' || m.name AS name, m.losses
FROM memory m JOIN session s ON s.session_key = m.session_key
WHERE m.losses <> '{}'::jsonb
ORDER BY 1 LIMIT %(names)s
"""


async def read_losses(tx: Transaction) -> Sequence[tuple[str, Mapping[str, Any]]]:
    """Returns memories that lost proposals, at most NAMES, with their tallies."""
    rows = await tx.fetch(_LOSSES, {"names": NAMES}, prepare=None)
    return [(row.name, row.losses) for row in rows]


_PENDING = """
SELECT count(*) AS pending,
    count(*) FILTER (WHERE created_at < now() - make_interval(secs => %(late)s)) AS late,
    coalesce(extract(epoch FROM now() - min(created_at)), 0)::float8 AS oldest
FROM {table} WHERE status = 'pending' AND ready_at > '-infinity'
"""


async def read_pending(tx: Transaction, table: str) -> tuple[int, int, float]:
    """Returns how many rows of `answer` or `schema_draft` are pending, and how many for long.

    With the age of the oldest in seconds.
    """
    assert table in ("answer", "schema_draft"), "other tables have no jobs"
    query = _PENDING.format(table=table)
    row = (await tx.fetch(query, {"late": PENDING_SECONDS}, prepare=None))[0]
    return row.pending, row.late, row.oldest


_INTENTS = """
SELECT count(*) AS open,
    count(*) FILTER (WHERE lease_until < now() - make_interval(secs => %(late)s)) AS forgotten
FROM intent
"""


async def read_intents(tx: Transaction) -> tuple[int, int]:
    """Returns how many intents are open, and how many of them dead."""
    row = (await tx.fetch(_INTENTS, {"late": INTENT_SECONDS}, prepare=None))[0]
    return row.open, row.forgotten


async def read_spend(tx: Transaction) -> bool:
    """Returns whether the tenant's sums equal those of its rows."""
    return not await sums.sums_off(tx, None)


_INDEX = """
SELECT count(*) FILTER (WHERE indexed_position < head) AS sessions,
    coalesce(sum(head - indexed_position), 0)::bigint AS chunks,
    coalesce(max(words_failure), '') AS words_failure,
    coalesce(max(index_failure), '') AS failure
FROM session WHERE has_unindexed
"""


async def read_index(tx: Transaction) -> tuple[int, int, str, str]:
    """Returns numbers of unindexed sessions and chunks, and why words and vectors fail, if so."""
    row = (await tx.fetch(_INDEX, prepare=None))[0]
    return row.sessions, row.chunks, row.words_failure, row.failure


async def read_redis(url: str) -> tuple[str, str]:
    """Returns name and version of a Redis server, and its eviction policy.

    Of a cluster, those of the node in the URL. Raises StorageError.
    """
    client = Redis.from_url(
        url, socket_timeout=CONNECT_SECONDS, socket_connect_timeout=CONNECT_SECONDS
    )
    try:
        server = await client.info("server")
        memory = await client.info("memory")
    except (RedisError, OSError) as error:
        raise StorageError(first_line(error)) from error
    finally:
        await client.aclose()
    name = "Valkey" if "valkey_version" in server else "Redis"
    version = server.get("valkey_version") or server.get("redis_version", "of an unknown release")
    return f"{name} {version}", str(memory.get("maxmemory_policy", ""))
