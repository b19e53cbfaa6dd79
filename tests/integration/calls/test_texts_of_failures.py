"""Whatever stops a statement, the texts in its values reach no log: neither PostgreSQL's, which
logs the statement, nor that of any process of ours."""

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from service.domain.values.tenancy import DEFAULT_TENANT
from service.local import postgres
from service.local.postgres import PostgresServer
from service.local.processes import ServerUser
from storage import tables
from storage.engine import connections
from storage.engine.database import Database
from storage.engine.driver import Connection
from storage.engine.errors import Busy, Full, StorageError, Unreachable
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
from tests.support import forking
from tests.support.harness import Servers, api, eventually, worker
from tests.support.volumes import CannotMount, Volume

#: For what waits for a lock that is held; a limit that a test is not about.
LONG = "10min"
#: How long one may wait for what comes; this only ends what hangs.
WAIT_SECONDS = 90.0
TABLESPACE_BYTES = 16 * 1024 * 1024

#: Another statement with a text.
UPDATE = "UPDATE session SET head = 2 WHERE name <> %(text)s RETURNING name"

Send = Callable[[Database], Awaitable[object]]


@pytest.fixture
def log(servers: Servers) -> PostgresLog:
    """Returns what PostgreSQL has logged since the test began."""
    return PostgresLog(servers)


@pytest.fixture
async def admin(servers: Servers, url: str) -> AsyncIterator[psycopg.AsyncConnection]:
    """Yields a superuser's connection to the test's database, which has a producer for chunks."""
    async with await psycopg.AsyncConnection.connect(servers.as_superuser(url)) as connection:
        await make_producer(connection)
        await log_statements(connection, url)
        yield connection


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Has connections wait for as long as a test says; it says which limit is short."""

    def wait(**short: str) -> None:
        names = ("lock_timeout", "statement_timeout", "idle_in_transaction_session_timeout")
        for name in names:
            monkeypatch.setitem(connections._SETTINGS, name, short.get(name, LONG))

    wait()
    return wait


@pytest.fixture
async def pool(url: str, patient: Callable[..., None]) -> AsyncIterator[Callable[[], Database]]:
    """Makes a database's pools once the test has said how they are."""
    made: list[Database] = []

    def make() -> Database:
        made.append(Database.connect(url, pool_size=len(WAYS), name="test"))
        return made[-1]

    yield make
    for one in made:
        await one.close()


async def _row(database: Database, text: str = CANARY) -> None:
    async with database.transaction(DEFAULT_TENANT) as tx:
        await tx.fetch(CHUNK, chunk(1, 1, text))


async def _rows(database: Database) -> None:
    async with database.transaction(DEFAULT_TENANT) as tx:
        await tx.execute(tables.chunk.insert(), [row(at) for at in (1, 2)])


async def _core(database: Database) -> None:
    async with database.transaction(DEFAULT_TENANT) as tx:
        await tx.execute(tables.chunk.insert().values(row(1)))


async def _batch(database: Database) -> None:
    async with database.direct(DEFAULT_TENANT) as tx:
        await tx.pipeline((CHUNK,), chunk(1, 1))


async def _read(database: Database) -> None:
    async with database.direct(DEFAULT_TENANT) as tx:
        await tx.fetch("SELECT FROM chunk WHERE text = %(text)s", {"text": CANARY}, prepare=False)


async def _binary(database: Database) -> None:
    async with database.direct(DEFAULT_TENANT) as tx:
        await tx.pipeline(("SELECT",), stays_open=True)
        await tx.fetch("UPDATE chunk SET text = %s WHERE text = %s", (CANARY, CANARY))


#: Every way in which statements are sent.
WAYS: tuple[Send, ...] = (_row, _rows, _core, _batch, _read, _binary)


async def _waiting(admin: psycopg.AsyncConnection, count: int) -> list[int]:
    """Waits until so many processes of the server wait for a lock; their ids."""
    until = asyncio.get_running_loop().time() + WAIT_SECONDS
    while True:
        # Not pg_stat_activity, of which a transaction sees one moment only.
        found = await admin.execute(
            "SELECT DISTINCT pid FROM pg_locks WHERE NOT granted"
            " AND (locktype = 'transactionid' OR database ="
            " (SELECT oid FROM pg_database WHERE datname = current_database()))"
        )
        pids = [pid for (pid,) in await found.fetchall()]
        if len(pids) >= count:
            return pids
        assert asyncio.get_running_loop().time() < until, "no statement came to wait"
        await asyncio.sleep(0.02)


async def _time_passes(admin: psycopg.AsyncConnection, sent: list[asyncio.Task[object]]) -> None:
    await asyncio.wait(sent, timeout=WAIT_SECONDS)


async def _cancelled(admin: psycopg.AsyncConnection, sent: list[asyncio.Task[object]]) -> None:
    for pid in await _waiting(admin, len(sent)):
        await admin.execute("SELECT pg_cancel_backend(%s)", (pid,))


async def _terminated(admin: psycopg.AsyncConnection, sent: list[asyncio.Task[object]]) -> None:
    for pid in await _waiting(admin, len(sent)):
        await admin.execute("SELECT pg_terminate_backend(%s)", (pid,))


async def _given_up(admin: psycopg.AsyncConnection, sent: list[asyncio.Task[object]]) -> None:
    await _waiting(admin, len(sent))
    for one in sent:
        one.cancel()


#: What ends a waiting statement: what is done, the limit that is short, the client's error, and
#: PostgreSQL's words.
STOPS: dict[str, tuple[Any, dict[str, str], type[BaseException], str]] = {
    "lock timeout": (_time_passes, {"lock_timeout": "1s"}, Busy, "due to lock timeout"),
    "statement timeout": (
        *(_time_passes, {"statement_timeout": "2s"}, Busy, "due to statement timeout"),
    ),
    "cancelled": (_cancelled, {}, Busy, "due to user request"),
    "given up": (_given_up, {}, asyncio.CancelledError, "due to user request"),
    "terminated": (_terminated, {}, Unreachable, "due to administrator command"),
}


async def _stop(admin: psycopg.AsyncConnection, database: Database, stop: Any) -> list[object]:
    """Sends a statement in each way while none gets its lock, and stops them; their errors."""
    await admin.execute("LOCK TABLE chunk IN ACCESS EXCLUSIVE MODE")
    sent = [asyncio.ensure_future(send(database)) for send in WAYS]
    try:
        await stop(admin, sent)
        return await asyncio.wait_for(asyncio.gather(*sent, return_exceptions=True), WAIT_SECONDS)
    finally:
        await admin.rollback()


@pytest.mark.parametrize("stop", STOPS)
async def test_statements_that_are_stopped_are_logged_without_texts(
    log: PostgresLog,
    admin: psycopg.AsyncConnection,
    patient: Callable[..., None],
    pool: Callable[[], Database],
    stop: str,
) -> None:
    how, short, told, words = STOPS[stop]
    patient(**short)
    for error in await _stop(admin, pool(), how):
        assert isinstance(error, told)
        assert_silent(error)
    theirs = log.text()
    assert theirs.count(words) >= len(WAYS)
    assert theirs.count("STATEMENT: ") >= len(WAYS)
    assert CANARY not in theirs


async def test_texts_are_found_where_values_stand_in_statements(
    log: PostgresLog,
    admin: psycopg.AsyncConnection,
    patient: Callable[..., None],
    pool: Callable[[], Database],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connect = Connection.connect

    async def connect_inlining(*told: Any, **named: Any) -> Connection:
        connection = await connect(*told, **named)
        connection.cursor_factory = psycopg.AsyncClientCursor
        return connection

    monkeypatch.setattr(Connection, "connect", connect_inlining)
    patient()
    await _stop(admin, pool(), _cancelled)
    assert log.text().count(CANARY) >= len(WAYS)


async def test_a_deadlock_is_logged_without_texts(
    log: PostgresLog, admin: psycopg.AsyncConnection, url: str, pool: Callable[[], Database]
) -> None:
    # Only ours looks for a deadlock, and does so once: when the other one waits already.
    await admin.execute("SET deadlock_timeout = '1h'")
    await admin.execute("LOCK TABLE chunk IN ACCESS EXCLUSIVE MODE")
    theirs: list[asyncio.Task[object]] = []

    async def work(database: Database) -> None:
        async with database.transaction(DEFAULT_TENANT) as tx:
            await tx.fetch(UPDATE, {"text": CANARY})
            statement = admin.execute("UPDATE session SET head = 1")
            theirs.append(asyncio.create_task(statement))
            async with await psycopg.AsyncConnection.connect(url, autocommit=True) as looking:
                await _waiting(looking, 1)
            await tx.fetch(CHUNK, chunk(1, 1))

    with pytest.raises(Busy, match="deadlock") as failed:
        await work(pool())
    await asyncio.gather(*theirs)
    await admin.rollback()
    assert_silent(failed.value)
    assert "deadlock detected" in log.text()
    assert "INSERT INTO chunk" in log.text()
    assert CANARY not in log.text()


async def test_a_serialization_failure_is_logged_without_texts(
    log: PostgresLog, admin: psycopg.AsyncConnection, pool: Callable[[], Database]
) -> None:
    name, setting = admin.info.dbname, "default_transaction_isolation = serializable"
    await admin.execute(f"ALTER DATABASE {name} SET {setting}".encode())
    await admin.commit()

    async def work(database: Database) -> None:
        async with database.transaction(DEFAULT_TENANT) as tx:
            await tx.fetch("SELECT name FROM session WHERE name <> %(text)s", {"text": CANARY})
            await admin.execute("UPDATE session SET head = 1")
            await admin.commit()
            await tx.fetch(UPDATE, {"text": CANARY})

    with pytest.raises(Busy, match="could not serialize") as failed:
        await work(pool())
    assert_silent(failed.value)
    assert "STATEMENT:  UPDATE session" in log.text()
    assert CANARY not in log.text()


async def test_a_transaction_that_idles_is_ended_without_texts(
    log: PostgresLog,
    admin: psycopg.AsyncConnection,
    patient: Callable[..., None],
    pool: Callable[[], Database],
) -> None:
    patient(idle_in_transaction_session_timeout="100ms")
    words = "due to idle-in-transaction timeout"

    async def work(database: Database) -> None:
        async with database.transaction(DEFAULT_TENANT) as tx:
            with contextlib.suppress(Unreachable):
                await tx.fetch(CHUNK, chunk(1, 1))
            await asyncio.to_thread(eventually, words, lambda: words in log.text())
            await tx.fetch(CHUNK, chunk(2, 2))

    with pytest.raises(Unreachable) as failed:
        await work(pool())
    assert_silent(failed.value)
    assert CANARY not in log.text()


@pytest.mark.prove
async def test_a_killed_process_of_the_server_is_logged_without_texts(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As other servers log: the server's first process logs what was running.
    monkeypatch.setitem(postgres._SETTINGS, "log_error_verbosity", "default")
    monkeypatch.setitem(postgres._SETTINGS, "log_min_error_statement", "error")
    with PostgresServer(folder / "pg") as server:
        connection = await Connection.connect(server.url, autocommit=True)
        pid = connection.info.backend_pid
        query = "SELECT pg_sleep(600), %(text)s::text"
        sent = asyncio.ensure_future(connection.execute(query, {"text": CANARY}, prepare=True))
        sleeps = "SELECT FROM pg_stat_activity WHERE pid = %s AND wait_event = 'PgSleep'"

        def is_asleep() -> bool:
            with psycopg.connect(server.superuser_url) as looking:
                return looking.execute(sleeps, (pid,)).fetchone() is not None

        await asyncio.to_thread(eventually, "it sleeps", is_asleep)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(psycopg.OperationalError) as failed:
            await sent
        logged = folder / "pg" / "postgres.log"
        words = "Failed process was running: SELECT pg_sleep(600)"
        await asyncio.to_thread(eventually, words, lambda: words in logged.read_text())
        await connection.close()
    assert_silent(failed.value)
    assert CANARY not in logged.read_text()


async def test_a_full_disk_is_logged_without_texts(
    folder: Path, log: PostgresLog, admin: psycopg.AsyncConnection, pool: Callable[[], Database]
) -> None:
    try:
        mounted = Volume.mounted(folder, TABLESPACE_BYTES)
        volume = mounted.__enter__()
    except CannotMount as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))
    space = f"small_{admin.info.dbname}"
    try:
        place = volume.folder / "space"
        place.mkdir(mode=0o700)
        user = ServerUser.current()
        os.chown(place, user.uid, user.gid)
        await admin.set_autocommit(True)
        await admin.execute(f"CREATE TABLESPACE {space} LOCATION '{place}'".encode())
        await admin.execute(f"ALTER TABLE chunk SET TABLESPACE {space}".encode())
        volume.fill()
        sent = _row(pool(), CANARY + os.urandom(256 * 1024).hex())
        with pytest.raises(Full) as failed:
            await sent
        volume.make_room()
        await admin.execute("ALTER TABLE chunk SET TABLESPACE pg_default")
        await admin.execute("CHECKPOINT")
        await admin.execute(f"DROP TABLESPACE {space}".encode())
    finally:
        mounted.__exit__(None, None, None)
    assert_silent(failed.value)
    assert "No space left on device" in log.text()
    assert "STATEMENT: " in log.text()
    assert CANARY not in log.text()


_OTHER_TENANT = CHUNK.replace("%(tenant)s", "gen_random_uuid()")
_LOCKS = """SELECT count(pg_advisory_xact_lock(n)) FROM generate_series(1, 1000000) n
WHERE %(text)s <> ''"""
_WORDS = """SELECT to_tsvector('simple', string_agg(%(text)s || n, ' '))
FROM generate_series(1, 99999) n"""
#: What PostgreSQL refuses: what makes it so, the statement, and PostgreSQL's words.
REFUSALS = {
    "memory": ("SELECT", _LOCKS, "out of shared memory"),
    "program limit": ("SELECT", _WORDS, "string is too long for tsvector"),
    "right": ("REVOKE INSERT ON chunk FROM palimpsest_app", CHUNK, "permission denied"),
    "tenant": ("SELECT", _OTHER_TENANT, "violates row-level security policy"),
    "table": ("ALTER TABLE chunk RENAME TO was_chunk", CHUNK, "does not exist"),
    "feature": (
        "CREATE RULE sharded AS ON UPDATE TO session DO INSTEAD NOTHING",
        f"WITH w AS ({UPDATE}) SELECT FROM w",
        "cannot perform",
    ),
}


@pytest.mark.parametrize("refusal", REFUSALS)
async def test_statements_that_are_refused_are_logged_without_texts(
    log: PostgresLog, admin: psycopg.AsyncConnection, pool: Callable[[], Database], refusal: str
) -> None:
    before, statement, words = REFUSALS[refusal]
    await admin.execute(before.encode())
    await admin.commit()

    async def work(database: Database) -> None:
        async with database.transaction(DEFAULT_TENANT) as tx:
            await tx.fetch(statement, chunk(1, 1))

    with pytest.raises((StorageError, psycopg.Error)) as failed:
        await work(pool())
    assert_silent(failed.value)
    assert words in log.text()
    assert "STATEMENT: " in log.text()
    assert CANARY not in log.text()


async def test_commands_and_processes_that_the_database_refuses_print_no_texts(
    url: str, log: PostgresLog, admin: psycopg.AsyncConnection, folder: Path
) -> None:
    text = folder / "text.txt"
    text.write_text(f"My name is {CANARY.title()}.\n")
    loud = {"PALIMPSEST_LOG_LEVEL": "debug"}
    commands = (
        ("ingest", str(text), "--session", "s", "--memory", "n", "--task", CANARY),
        ("ask", f"Who is {CANARY}?", "--session", "s"),
        ("search", CANARY, "-s", "s"),
        ("session", "create", CANARY),
    )
    told = []
    with api(url, **loud) as (server, address), worker(url, **loud) as working:
        await _run(("ingest", str(text), "--session", "s"), url, address)
        # An unexpected error, which is logged with all that led to it.
        refused = "chunk, session, memory, answer, call, intent, chunk_word, producer"
        await admin.execute(f"REVOKE INSERT, UPDATE ON {refused} FROM palimpsest_app".encode())
        await admin.execute("REVOKE SELECT ON chunk FROM palimpsest_app")
        await admin.commit()
        for command in commands:
            told.append(await _run(command, url, address))
        told.append(await _run(("verify", "s"), url, address))
        ours = server.log() + working.log()
    assert all(one.returncode for one in told), told
    assert all(one.stderr and CANARY not in one.stderr.lower() for one in told)
    assert "permission denied" in log.text()
    assert "permission denied" in ours
    for logged in (log.text(), ours):
        assert CANARY not in logged.lower()


async def _run(
    command: tuple[str, ...], url: str, address: str
) -> "subprocess.CompletedProcess[str]":
    variables = {**os.environ, "PALIMPSEST_DATABASE_URL": url, "PALIMPSEST_ADDRESS": address}
    return await asyncio.to_thread(
        forking.run, command, environment=variables, seconds=WAIT_SECONDS
    )
