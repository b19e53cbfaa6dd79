"""Memories wait since the append that gave them work, unless they are to wait for longer."""

import asyncio
from datetime import datetime

import pytest
from sqlalchemy import text

from service.domain.values.tenancy import DEFAULT_TENANT
from service.settings.config import Limits
from service.usecases.log.append import Appender
from service.usecases.log.wake_ups import WakeUps
from storage.engine.database import Database
from tests.integration.support.scripted import make
from tests.integration.support.writing import append_texts, drop_wake_ups, submission


@pytest.fixture
async def session(database: Database) -> None:
    await make(database, [])


async def rest(database: Database, ready: str) -> None:
    """Makes the memory wait for chunks; it is ready at a time that is given in SQL."""
    async with database.transaction(DEFAULT_TENANT) as tx:
        statement = f"UPDATE memory SET has_work = false, ready_at = now() {ready}"
        await tx.execute(text(statement))


async def times(database: Database) -> tuple[datetime, datetime]:
    """Returns when the memory is ready, and when the newest chunk came."""
    statement = (
        "SELECT ready_at, (SELECT created_at FROM chunk ORDER BY position DESC LIMIT 1)"
        " FROM memory WHERE has_work"
    )
    async with database.transaction(DEFAULT_TENANT) as tx:
        ready_at, created_at = (await tx.fetch(text(statement)))[0]
    return ready_at, created_at


async def test_a_memory_waits_since_the_append_that_woke_it(
    session: None, database: Database
) -> None:
    appender = Appender(database, WakeUps(drop_wake_ups), b"token-key", Limits())
    running = asyncio.create_task(appender.run())
    try:
        # The first is written under the lock, the second on a guess.
        for sequence in (1, 2):
            await rest(database, "- interval '1 hour'")
            await appender.submit(DEFAULT_TENANT, submission("s", ["one"], first=sequence))
            ready_at, created_at = await times(database)
            assert ready_at == created_at
    finally:
        running.cancel()


async def test_a_memory_that_has_work_waits_since_it_got_it(
    session: None, database: Database
) -> None:
    await append_texts(database, "s", ["one"])
    since, _ = await times(database)
    await append_texts(database, "s", ["two"], first=2)
    assert (await times(database))[0] == since


async def test_what_is_to_wait_for_longer_does(session: None, database: Database) -> None:
    appender = Appender(database, WakeUps(drop_wake_ups), b"token-key", Limits())
    running = asyncio.create_task(appender.run())
    try:
        for sequence in (1, 2):
            await rest(database, "+ interval '1 hour'")
            await appender.submit(DEFAULT_TENANT, submission("s", ["one"], first=sequence))
            ready_at, created_at = await times(database)
            assert (ready_at - created_at).total_seconds() > 3000
    finally:
        running.cancel()
