"""Epochs that come with batches: the highest one wins, whatever else is in its batch."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from service.domain.values.errors import Conflict
from service.domain.values.reasons import Reason
from service.domain.values.tenancy import DEFAULT_TENANT, memory_id, session_key
from service.settings.config import Limits
from service.usecases.log.append import Appender
from service.usecases.log.wake_ups import WakeUps
from storage.engine.database import Database
from storage.log import sessions
from storage.memories import memories
from tests.integration.support.scripted import SPEC
from tests.integration.support.writing import drop_wake_ups, submission

KEY = session_key(DEFAULT_TENANT, "s")


@pytest.fixture
async def appender(database: Database) -> AsyncIterator[Appender]:
    async with database.transaction(DEFAULT_TENANT) as tx:
        await sessions.create(tx, KEY, "s")
    appender = Appender(database, WakeUps(drop_wake_ups), b"token-key", Limits())
    running = asyncio.create_task(appender.run())
    yield appender
    running.cancel()


async def test_a_resend_with_a_higher_epoch_fences_the_lower_one(appender: Appender) -> None:
    await appender.submit(DEFAULT_TENANT, submission("s", ["a", "b"], epoch=1))
    again = await appender.submit(DEFAULT_TENANT, submission("s", ["a", "b"], epoch=2))
    assert (again.sequence, again.position) == (2, 2)
    with pytest.raises(Conflict) as refused:
        await appender.submit(DEFAULT_TENANT, submission("s", ["c"], first=3, epoch=1))
    assert refused.value.reason is Reason.PRODUCER_FENCED
    third = await appender.submit(DEFAULT_TENANT, submission("s", ["c"], first=3, epoch=2))
    assert third.position == 3


async def test_a_raised_epoch_wakes_no_memory(database: Database, appender: Appender) -> None:
    await appender.submit(DEFAULT_TENANT, submission("s", ["a"], epoch=1))
    identity = memory_id(KEY, "m")
    async with database.transaction(DEFAULT_TENANT) as tx:
        await memories.create(
            tx,
            session_key=KEY,
            memory_id=identity,
            name="m",
            spec=SPEC,
            head=0,
            value="{}",
            digest=b"",
        )
    await appender.submit(DEFAULT_TENANT, submission("s", ["a"], epoch=2))
    async with database.transaction(DEFAULT_TENANT) as tx:
        rows = await tx.fetch("SELECT has_work, head FROM memory JOIN session USING (session_key)")
        (row,) = rows
    assert (row.has_work, row.head) == (False, 1)
