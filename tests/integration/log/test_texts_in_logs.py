"""Texts of users reach neither PostgreSQL's log nor ours, whichever statement fails and how."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from uuid import uuid4

import psycopg
import pytest

import palimpsest
from service.domain.values.tenancy import DEFAULT_TENANT
from storage import tables
from storage.engine.database import Database, Transaction
from storage.engine.errors import StorageError
from tests.integration.support.canary import (
    CANARY,
    CHUNK,
    PostgresLog,
    assert_silent,
    chunk,
    log_statements,
    make_producer,
    row,
)
from tests.support.harness import Servers, api, worker

#: Tables that appends, steps, model calls, answers, searches and edits wait for.
TABLES = (
    *("session", "producer", "chunk", "memory", "revision", "prism_value", "call", "intent"),
    *("answer", "chunk_word", "amendment", "schema_draft"),
)
END = {"cancelled": "pg_cancel_backend", "disconnected": "pg_terminate_backend"}
#: How long it is waited for a statement of ours to run into a lock.
WAIT_SECONDS = 90.0


@pytest.fixture
def log(servers: Servers) -> PostgresLog:
    """Returns what PostgreSQL has logged since the test began."""
    return PostgresLog(servers)


@pytest.fixture
async def admin(servers: Servers, url: str) -> AsyncIterator[psycopg.AsyncConnection]:
    """Yields a superuser's connection to the test's database."""
    async with await psycopg.AsyncConnection.connect(servers.as_superuser(url)) as connection:
        yield connection


@pytest.mark.prove
@pytest.mark.parametrize("end", END)
async def test_statements_that_fail_are_logged_without_texts(
    url: str, log: PostgresLog, admin: psycopg.AsyncConnection, end: str
) -> None:
    await log_statements(admin, url)
    loud = {"PALIMPSEST_LOG_LEVEL": "debug"}
    with api(url, **loud) as (server, address), worker(url, **loud) as working:
        async with palimpsest.connect(address) as client:
            traffic = [asyncio.create_task(_traffic(client, name)) for name in "abc"]
            try:
                failed = [await _fail(admin, traffic, table, END[end]) for table in TABLES]
            finally:
                for one in traffic:
                    one.cancel()
                await asyncio.gather(*traffic, return_exceptions=True)
        ours = server.log() + working.log()
    theirs = log.text()
    assert theirs.count("STATEMENT: ") + theirs.count("FATAL: ") >= sum(failed) >= len(TABLES)
    assert CANARY not in theirs
    assert CANARY not in ours


async def _traffic(client: palimpsest.Client, name: str) -> None:
    """Runs everything that writes and reads texts, again and again, whatever fails."""
    number = 0
    while True:
        number += 1
        with contextlib.suppress(palimpsest.PalimpsestError):
            session = await client.create_session(f"{name}-{number}")
            schema = f"class Notes:\n    {CANARY}: str\n    names: list[str]\n"
            memory = await session.create_memory("m", schema_source=schema, task=CANARY)
            async with session.producer("p", give_up_seconds=5) as producer:
                for at in range(3):
                    said = f"My name is {CANARY.title()} {name}-{number}-{at}."
                    await producer.append(said, metadata={CANARY: CANARY})
                    await producer.flush()
            edit = palimpsest.Edit.put("$.names", [CANARY])
            await memory.edit([edit], comment=CANARY)
            await session.search(CANARY, limit=3)
            await memory.ask(f"Who is {CANARY}?", timeout=5)
            await session.generate_schema(CANARY, f"Who is {CANARY}?", timeout=5)


async def _fail(
    admin: psycopg.AsyncConnection, traffic: list[asyncio.Task[None]], table: str, function: str
) -> int:
    """Keeps a table locked until statements of ours wait for it, and ends these; how many."""
    await admin.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE".encode())
    ended = 0
    until = asyncio.get_running_loop().time() + WAIT_SECONDS
    while not ended:
        assert asyncio.get_running_loop().time() < until, f"nothing waits for {table}"
        await asyncio.sleep(0.02)
        for one in traffic:
            assert not one.done(), one.result()
        # Not pg_stat_activity, of which a transaction sees one moment only.
        found = await admin.execute(
            f"SELECT count({function}(pid)) FROM (SELECT DISTINCT pid FROM pg_locks"
            " WHERE NOT granted AND database = (SELECT oid FROM pg_database"
            " WHERE datname = current_database())) AS waiting".encode()
        )
        ((ended,),) = await found.fetchall()
    await admin.rollback()
    return ended


async def _check_violation(tx: Transaction) -> None:
    await tx.fetch(CHUNK, chunk(0, 1))


async def _unique_violation(tx: Transaction) -> None:
    for position in (1, 2):
        await tx.fetch(CHUNK, chunk(position, 1))


async def _foreign_key_violation(tx: Transaction) -> None:
    await tx.fetch(CHUNK, chunk(1, 1) | {"producer": f"{CANARY}-2"})


async def _wrong_value(tx: Transaction) -> None:
    await tx.fetch("SELECT %(text)s::text::jsonb", {"text": f'{{"{CANARY}'})


async def _many_rows(tx: Transaction) -> None:
    await tx.execute(tables.chunk.insert(), [row(at) for at in (1, 0)])


async def _one_batch(database: Database) -> None:
    async with database.direct(DEFAULT_TENANT) as tx:
        await tx.pipeline((CHUNK, CHUNK), chunk(1, 1))


def _in_transaction(run: Callable[[Transaction], Awaitable[None]]) -> Callable[..., object]:
    async def work(database: Database) -> None:
        async with database.transaction(DEFAULT_TENANT) as tx:
            await run(tx)

    return work


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (_in_transaction(_check_violation), "violates check constraint"),
        (_in_transaction(_unique_violation), "duplicate key value"),
        (_in_transaction(_foreign_key_violation), "violates foreign key constraint"),
        (_in_transaction(_wrong_value), "invalid input syntax"),
        (_in_transaction(_many_rows), "violates check constraint"),
        (_one_batch, "duplicate key value"),
    ],
    ids=["check", "unique", "foreign key", "value", "rows", "batch"],
)
async def test_refused_rows_are_reported_without_their_contents(
    url: str,
    log: PostgresLog,
    admin: psycopg.AsyncConnection,
    run: Callable[[Database], Awaitable[None]],
    words: str,
) -> None:
    await make_producer(admin)
    database = Database.connect(url, pool_size=1, name=f"test-{uuid4().hex[:8]}")
    try:
        with pytest.raises(Exception) as failed:  # noqa: PT011 - any, as it would be logged
            await run(database)
    finally:
        await database.close()
    assert isinstance(failed.value, StorageError) or "22P02" in str(failed.value)
    assert_silent(failed.value)
    assert words in log.text()
    assert CANARY not in log.text()
