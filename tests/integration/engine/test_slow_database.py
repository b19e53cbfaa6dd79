"""A database that is slow or does not respond: waiting calls fail in time."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import psycopg
import pytest
from sqlalchemy import text

from service.domain.values.tenancy import DEFAULT_TENANT
from storage.engine import database as module
from storage.engine.database import Database
from storage.engine.errors import Unreachable, translate
from tests.support.cutting import relayed
from tests.support.harness import Servers

#: Longer than this test looks for it, shorter than any statement may take.
SLEEP = "SELECT pg_sleep(25)"


async def through_core(database: Database, statement: str) -> None:
    async with database.transaction(DEFAULT_TENANT) as tx:
        await tx.execute(text(statement))


async def through_rows(database: Database, statement: str) -> None:
    async with database.transaction(DEFAULT_TENANT) as tx:
        await tx.fetch(statement, {})


async def through_driver(database: Database, statement: str) -> None:
    async with database.direct(DEFAULT_TENANT) as tx:
        await tx.fetch(statement, ())


WAYS = pytest.mark.parametrize("run", [through_core, through_rows, through_driver])


@pytest.fixture
async def single(url: str) -> AsyncIterator[Database]:
    """Yields a pool of one connection."""
    database = Database.connect(url, pool_size=1, name="single")
    yield database
    await database.close()


@WAYS
async def test_who_is_gone_keeps_no_connection_busy(
    single: Database, servers: Servers, url: str, run: Callable[..., Any]
) -> None:
    await run(single, "SELECT 1")
    with psycopg.connect(servers.as_superuser(url), autocommit=True) as look:

        def asleep() -> bool:
            found = look.execute(
                "SELECT FROM pg_stat_activity WHERE query LIKE '%pg_sleep(25)%'"
                " AND state = 'active' AND pid <> pg_backend_pid()"
            )
            return bool(found.fetchall())

        gone = asyncio.create_task(run(single, SLEEP))
        async with asyncio.timeout(30):
            while not asleep():
                await asyncio.sleep(0.02)
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
        assert not asleep(), "the statement is cancelled, not only left"
        # The only connection is free again.
        await run(single, "SELECT 1")


@pytest.mark.prove
@WAYS
async def test_a_full_pool_is_an_error_in_time(
    single: Database, monkeypatch: pytest.MonkeyPatch, run: Callable[..., Any]
) -> None:
    # It holds the connection for longer than the other one waits for it.
    monkeypatch.setattr(module, "TRANSACTION_SECONDS", 4)
    holding = asyncio.create_task(run(single, SLEEP))
    await asyncio.sleep(0)
    monkeypatch.setattr(module, "TRANSACTION_SECONDS", 0.5)
    with pytest.raises(Unreachable, match="in time"):
        await run(single, "SELECT 1")
    with pytest.raises(Unreachable, match="in time"):
        await holding
    monkeypatch.setattr(module, "TRANSACTION_SECONDS", 30)
    await run(single, "SELECT 1")


@pytest.mark.prove
async def test_a_server_that_stands_still_is_given_up(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ways = (through_core, through_driver)
    async with relayed(url) as (relay, through):
        database = Database.connect(through, pool_size=2, name="relayed")
        await asyncio.gather(*(run(database, "SELECT 1") for run in ways * 2))
        relay.hold()
        gone = [asyncio.create_task(run(database, "SELECT 1")) for run in ways]
        await asyncio.sleep(0.1)
        monkeypatch.setattr(module, "TRANSACTION_SECONDS", 0.5)
        waits = [asyncio.create_task(run(database, "SELECT 1")) for run in ways]
        await asyncio.sleep(0.1)
        for one in gone:
            one.cancel()
        # Both get their own outcome, and not an error about the closed connections.
        ended = await asyncio.gather(*gone, *waits, return_exceptions=True)
        kinds = [type(one) for one in ended]
        assert kinds == [asyncio.CancelledError] * 2 + [Unreachable] * 2
        relay.release()
        monkeypatch.setattr(module, "TRANSACTION_SECONDS", 30)
        await asyncio.gather(*(run(database, "SELECT 1") for run in ways * 2))
        await database.close()


async def test_a_server_that_may_not_write_is_no_defect(single: Database) -> None:
    with pytest.raises(Unreachable, match="read-only"):
        async with single.direct(DEFAULT_TENANT) as tx:
            await tx.pipeline(("CREATE TABLE t ()",), snapshot=True)
    assert isinstance(translate(psycopg.errors.IdleInTransactionSessionTimeout()), Unreachable)
