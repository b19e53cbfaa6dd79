"""Texts of users reach neither PostgreSQL's log nor ours, whichever statement fails and how."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict
from psycopg.types.json import Jsonb

import palimpsest
from service.domain.tenancy import DEFAULT_TENANT, session_key
from storage.database import Database, Transaction
from storage.errors import StorageError
from tests.harness import Servers, api, worker

#: Stands in every text that the traffic sends.
CANARY = "kanarienvogel"
#: Tables that appends, steps, model calls, answers, searches and edits wait for.
TABLES = (
    *("session", "producer", "chunk", "memory", "revision", "prism_value", "call", "intent"),
    *("answer", "chunk_word", "amendment", "schema_draft"),
)
END = {"cancelled": "pg_cancel_backend", "disconnected": "pg_terminate_backend"}
#: How long it is waited for a statement of ours to run into a lock.
WAIT_SECONDS = 90.0

Log = Callable[[], str]


@pytest.fixture
def log(servers: Servers) -> Log:
    """Returns what PostgreSQL has logged since the test began."""
    path = Path(servers.postgres._folder) / "postgres.log"
    begun = path.stat().st_size

    def since() -> str:
        with path.open("rb") as file:
            file.seek(begun)
            return file.read().decode(errors="replace")

    return since


@pytest.fixture
async def admin(servers: Servers, url: str) -> AsyncIterator[psycopg.AsyncConnection]:
    """A superuser's connection to the test's database."""
    async with await psycopg.AsyncConnection.connect(servers.as_superuser(url)) as connection:
        yield connection


async def log_as_others_do(admin: psycopg.AsyncConnection, url: str) -> None:
    """Has the server log the statements that fail, as PostgreSQL does unless it is told."""
    name = conninfo_to_dict(url)["dbname"]
    for setting in ("log_error_verbosity = default", "log_min_error_statement = error"):
        await admin.execute(f"ALTER DATABASE {name} SET {setting}".encode())
    await admin.commit()


@pytest.mark.parametrize("end", END)
async def test_statements_that_fail_are_logged_without_texts(
    url: str, log: Log, admin: psycopg.AsyncConnection, end: str
) -> None:
    await log_as_others_do(admin, url)
    with api(url) as (server, address), worker(url) as working:
        async with palimpsest.connect(address) as client:
            traffic = [asyncio.create_task(_traffic(client, name)) for name in "abc"]
            try:
                failed = [await _fail(admin, traffic, table, END[end]) for table in TABLES]
            finally:
                for one in traffic:
                    one.cancel()
                await asyncio.gather(*traffic, return_exceptions=True)
        ours = server.log() + working.log()
    theirs = log()
    assert theirs.count("STATEMENT: ") + theirs.count("FATAL: ") >= sum(failed) >= len(TABLES)
    assert CANARY not in theirs
    assert CANARY not in ours


async def _traffic(client: palimpsest.Client, name: str) -> None:
    """Everything that writes and reads texts, again and again, whatever fails."""
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
            await memory.revise([edit], comment=CANARY)
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


KEY = session_key(DEFAULT_TENANT, "s")
_CHUNK = """
INSERT INTO chunk (tenant_id, session_key, position, producer_id, producer_sequence, kind, text,
                   digest, metadata)
VALUES (%(tenant)s, %(key)s, %(position)s, %(producer)s, %(sequence)s, 'text', %(text)s,
        sha256('x'), %(metadata)s)
"""


def _chunk(position: int, sequence: int, text: str = CANARY) -> dict[str, object]:
    return {
        "tenant": DEFAULT_TENANT,
        "key": KEY,
        "position": position,
        "producer": CANARY,
        "sequence": sequence,
        "text": text,
        "metadata": Jsonb({CANARY: CANARY}),
    }


async def _check_violation(tx: Transaction) -> None:
    await tx.rows(_CHUNK, _chunk(0, 1))


async def _unique_violation(tx: Transaction) -> None:
    for position in (1, 2):
        await tx.rows(_CHUNK, _chunk(position, 1))


async def _foreign_key_violation(tx: Transaction) -> None:
    await tx.rows(_CHUNK, _chunk(1, 1) | {"producer": f"{CANARY}-2"})


async def _wrong_value(tx: Transaction) -> None:
    await tx.rows("SELECT %(text)s::text::jsonb", {"text": f'{{"{CANARY}'})


async def _many_rows(tx: Transaction) -> None:
    await tx.connection.exec_driver_sql(_CHUNK, [_chunk(at, at) for at in (1, 0)])


async def _one_batch(database: Database) -> None:
    async with database.direct(DEFAULT_TENANT) as tx:
        await tx.write_all((_CHUNK, _CHUNK), _chunk(1, 1))


def _in_transaction(run: Callable[[Transaction], Awaitable[None]]) -> Callable[..., object]:
    async def work(database: Database) -> None:
        async with database.transaction(DEFAULT_TENANT) as tx:
            await run(tx)

    return work


@pytest.mark.parametrize(
    "run",
    [
        *map(_in_transaction, (_check_violation, _unique_violation, _foreign_key_violation)),
        *map(_in_transaction, (_wrong_value, _many_rows)),
        _one_batch,
    ],
    ids=["check", "unique", "foreign key", "value", "rows", "batch"],
)
async def test_rows_that_are_refused_are_told_without_what_is_in_them(
    url: str,
    log: Log,
    admin: psycopg.AsyncConnection,
    run: Callable[[Database], Awaitable[None]],
) -> None:
    await admin.execute(
        "INSERT INTO session (session_key, tenant_id, name) VALUES (%s, %s, 's')",
        (KEY, DEFAULT_TENANT),
    )
    await admin.execute(
        "INSERT INTO producer (session_key, producer_id, tenant_id, epoch, last_sequence)"
        " VALUES (%s, %s, %s, 0, 0)",
        (KEY, CANARY, DEFAULT_TENANT),
    )
    await admin.commit()
    database = Database.connect(url, pool_size=1, name=f"test-{uuid4().hex[:8]}")
    try:
        with pytest.raises(Exception) as failed:  # noqa: PT011 - any, as it would be logged
            await run(database)
    finally:
        await database.close()
    told: BaseException | None = failed.value
    assert isinstance(told, StorageError) or "22P02" in str(told)
    while told is not None:
        assert CANARY not in str(told)
        told = told.__cause__ or told.__context__
    assert "ERROR: " in log()
    assert CANARY not in log()
