"""Appends read a few rows, whatever is behind and however old the planner's statistics are."""

import asyncio
from collections.abc import Sequence
from typing import Any

import psycopg

from service.domain.values.tenancy import DEFAULT_TENANT, session_key
from service.settings.config import Limits
from service.usecases.log.append import Appender
from service.usecases.log.wake_ups import WakeUps
from storage.engine.database import Database
from tests.integration.support.writing import drop_wake_ups, submission
from tests.support.harness import Servers

#: Memories that have work, each in a session of its own.
BEHIND = 3000
#: Sessions that are appended to, at once and each by itself.
OWN = ("own-1", "own-2", "own-3", "own-4")
#: A connection keeps a plan when it has made one so often.
PLANNED = 8
ROUNDS = 5

_FILL = """
INSERT INTO session (session_key, tenant_id, name, head)
SELECT key, %(tenant)s, name, 1 FROM unnest(%(keys)s::uuid[], %(names)s::text[]) AS t (key, name);
INSERT INTO producer (session_key, producer_id, tenant_id, epoch, last_sequence)
SELECT key, 'p', %(tenant)s, 0, 1 FROM unnest(%(keys)s::uuid[], %(names)s::text[]) AS t (key, name);
INSERT INTO chunk (session_key, position, tenant_id, producer_id, producer_sequence, kind, role,
                   text, observation, thought, action, digest)
SELECT key, 1, %(tenant)s, 'p', 1, 'text', '', 'behind', '', '', '', ''
FROM unnest(%(keys)s::uuid[], %(names)s::text[]) AS t (key, name);
INSERT INTO memory (session_key, memory_id, tenant_id, name, kind, spec, has_work)
SELECT key, key, %(tenant)s, 'm', 'prism', '{"schema_source": ""}', true
FROM unnest(%(keys)s::uuid[], %(names)s::text[]) AS t (key, name);
INSERT INTO revision (session_key, memory_id, revision, tenant_id, from_position, to_position,
                      kind, epoch, digest)
SELECT key, key, 0, %(tenant)s, 0, 0, 'create', 0, ''
FROM unnest(%(keys)s::uuid[], %(names)s::text[]) AS t (key, name)
"""
_READ = """
SELECT relname, seq_tup_read + coalesce(idx_tup_fetch, 0) FROM pg_stat_user_tables
WHERE relname IN ('session', 'producer', 'chunk', 'memory', 'request', 'tenant')
"""


async def test_what_is_behind_costs_an_append_no_row(servers: Servers, url: str) -> None:
    with psycopg.connect(servers.as_superuser(url), autocommit=True) as connection:
        fill(connection, OWN)
        # As a database that was analyzed when it was empty, and never again.
        connection.execute("ANALYZE")
        # One connection, which keeps the plans that it made then.
        database = Database.connect(url, pool_size=1, name="test")
        appender = Appender(database, WakeUps(drop_wake_ups), b"token-key", Limits())
        running = asyncio.create_task(appender.run())
        try:
            for number in range(PLANNED):
                await append(appender, number)
            few = await rows_read(connection, database, appender, PLANNED)
            fill(connection, [f"behind-{number}" for number in range(BEHIND)])
            many = await rows_read(connection, database, appender, PLANNED + ROUNDS)
        finally:
            running.cancel()
            await database.close()
    assert few["session"] > 0
    assert {name: number for name, number in many.items() if number > few[name] + BEHIND} == {}


def fill(connection: psycopg.Connection[Any], names: Sequence[str]) -> None:
    """Makes sessions with a chunk and a memory that has not read it."""
    values = {
        "tenant": DEFAULT_TENANT,
        "keys": [session_key(DEFAULT_TENANT, name) for name in names],
        "names": list(names),
    }
    with connection.transaction():
        for statement in _FILL.split(";"):
            connection.execute(statement, values)
    # Else what the checks of keys read here may be reported later, as if appends had read it.
    connection.execute("SELECT pg_stat_force_next_flush()")


async def append(appender: Appender, number: int) -> None:
    """Two chunks for each of OWN: together in one transaction, and each in one of its own."""
    first = 2 + 2 * number
    batches = [submission(name, ["together"], first=first) for name in OWN]
    await asyncio.gather(*(appender.submit(DEFAULT_TENANT, one) for one in batches))
    for name in OWN:
        await appender.submit(DEFAULT_TENANT, submission(name, ["alone"], first=first + 1))


async def rows_read(
    connection: psycopg.Connection[Any], database: Database, appender: Appender, number: int
) -> dict[str, int]:
    """Returns the rows that ROUNDS rounds of appends read, by table, checked keys included."""
    before = await _read(connection, database)
    for each in range(number, number + ROUNDS):
        await append(appender, each)
    after = await _read(connection, database)
    return {name: read - before[name] for name, read in after.items()}


async def _read(connection: psycopg.Connection[Any], database: Database) -> dict[str, int]:
    async with database.direct(DEFAULT_TENANT) as tx:
        # With this transaction the connection says what it has read until now.
        await tx.fetch("SELECT pg_stat_force_next_flush()", ())
    return dict(connection.execute(_READ).fetchall())
