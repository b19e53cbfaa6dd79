"""Errors that clients get when the database refuses a statement."""

import asyncio
from collections.abc import AsyncIterator
from uuid import uuid4

import psycopg
import pytest

import palimpsest
from service.domain.operations.doctor import Severity
from service.domain.values.errors import FailedPrecondition, PalimpsestError, Unavailable
from service.domain.values.reasons import Reason
from service.domain.values.tenancy import DEFAULT_TENANT, session_key
from service.settings.config import Config, Limits
from service.usecases.log.append import Appender
from service.usecases.log.wake_ups import WakeUps
from service.usecases.operations.doctor import Doctor, Migrations
from storage.engine import connections, database_state
from storage.engine.database import Database
from storage.log import sessions
from tests.integration.support.writing import drop_wake_ups, submission
from tests.support.harness import Process, Servers, api

#: A statement that PostgreSQL takes at no time for such a table, as a sharded one never does.
RULE = "CREATE RULE sharded AS ON UPDATE TO producer DO ALSO NOTHING"


@pytest.fixture
async def appender(url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Appender]:
    """Yields one that waits for locks for a moment only."""
    monkeypatch.setitem(connections._SETTINGS, "lock_timeout", "100ms")
    database = Database.connect(url, pool_size=2, name="test")
    async with database.transaction(DEFAULT_TENANT) as tx:
        await sessions.create(tx, session_key(DEFAULT_TENANT, "s"), "s")
    appender = Appender(database, WakeUps(drop_wake_ups), b"token-key", Limits())
    running = asyncio.create_task(appender.run())
    yield appender
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await database.close()


async def refused(appender: Appender, number: int) -> PalimpsestError:
    with pytest.raises(PalimpsestError) as found:
        await appender.submit(DEFAULT_TENANT, submission("s", ["x"], first=number))
    return found.value


@pytest.mark.parametrize("first", [1, 2], ids=["locked", "fast path"])
async def test_a_lock_that_is_not_given_is_reported_as_one(
    appender: Appender, url: str, servers: Servers, first: int
) -> None:
    if first == 2:
        await appender.submit(DEFAULT_TENANT, submission("s", ["x"]))
    async with await psycopg.AsyncConnection.connect(servers.as_superuser(url)) as blocker:
        await blocker.execute("SELECT FROM session FOR UPDATE")
        told = await refused(appender, first)
    assert isinstance(told, Unavailable)
    assert told.reason is Reason.DATABASE_UNAVAILABLE
    assert "waiting for a lock" in told.message
    assert "nothing was written" in told.message
    await appender.submit(DEFAULT_TENANT, submission("s", ["x"], first=first))


async def test_a_statement_that_a_database_never_takes_is_one_clear_refusal(
    appender: Appender, url: str, servers: Servers
) -> None:
    async with await psycopg.AsyncConnection.connect(servers.as_superuser(url)) as admin:
        await admin.execute(RULE.encode())
    told = await refused(appender, 1)
    assert isinstance(told, FailedPrecondition)
    assert told.reason is Reason.DATABASE_NOT_SUPPORTED
    assert "sharded" in told.message
    assert "docs/guides/running.md#poolers" in told.message
    with api(url) as (server, address):
        async with palimpsest.connect(address) as client:
            session = client.session("s")
            with pytest.raises(palimpsest.PalimpsestError) as failed:
                async with session.producer("p"):
                    raise AssertionError("it was opened")
        logged = server.log()
    assert failed.value.reason == "DATABASE_NOT_SUPPORTED"
    assert "Traceback" not in logged


async def test_a_login_that_may_pass_separation_by_is_refused_whatever_its_role(
    url: str, servers: Servers
) -> None:
    superuser = servers.as_superuser(url)
    database = Database.connect(superuser, pool_size=1, name="test")
    try:
        found = await database_state.read(database)
    finally:
        await database.close()
    assert found.role == "palimpsest_app"
    assert "the login postgres is a superuser" in found.unfit
    with pytest.raises(RuntimeError, match="the login postgres is a superuser"):
        Process("serve", {"PALIMPSEST_DATABASE_URL": superuser}, "never")
    config = Config.model_validate({"database_url": superuser})
    doctor = Doctor(config, Migrations(newest="", known=frozenset()))
    levels = {one.name: one.level async for one in doctor.findings()}
    assert levels["rights"] is Severity.BAD


async def test_rows_belong_to_the_tenant_of_their_session(url: str, servers: Servers) -> None:
    key, other = uuid4(), uuid4()
    async with await psycopg.AsyncConnection.connect(servers.as_superuser(url)) as admin:
        await admin.execute("INSERT INTO tenant (tenant_id, name) VALUES (%s, 'other')", (other,))
        await admin.execute(
            "INSERT INTO session (session_key, tenant_id, name) VALUES (%s, %s, 's')",
            (key, DEFAULT_TENANT),
        )
        with pytest.raises(psycopg.errors.ForeignKeyViolation, match="producer_session_fkey"):
            await admin.execute(
                "INSERT INTO producer (session_key, producer_id, tenant_id, epoch, last_sequence)"
                " VALUES (%s, 'p', %s, 0, 0)",
                (key, other),
            )


async def test_every_key_to_a_session_has_its_tenant(url: str, servers: Servers) -> None:
    async with await psycopg.AsyncConnection.connect(servers.as_superuser(url)) as admin:
        found = await admin.execute(
            "SELECT c.conrelid::regclass::text, c.convalidated, array(SELECT attname::text"
            " FROM pg_attribute WHERE attrelid = c.conrelid AND attnum = ANY(c.conkey))"
            " FROM pg_constraint c WHERE c.contype = 'f' AND c.confrelid = 'session'::regclass"
        )
        keys = {table: (set(columns), whole) for table, whole, columns in await found.fetchall()}
    assert {"producer", "memory", "call_sum", "budget", "schema_draft"} <= set(keys)
    for table, (columns, whole) in keys.items():
        assert columns == {"session_key", "tenant_id"}, table
        assert whole, table
