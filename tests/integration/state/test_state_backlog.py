"""Steps that are recent are no backlog: an idle memory is not behind with them."""

import asyncio

import pytest

from service.domain.state.spec import StateSpec
from service.domain.values.errors import Exhausted
from service.domain.values.tenancy import DEFAULT_TENANT
from service.settings.config import Limits
from service.usecases.log.append import Appender
from service.usecases.log.submissions import Appended
from service.usecases.log.wake_ups import WakeUps
from storage.engine.database import Database
from tests.integration.support.scripted import ITEM, Script, make, read, state_method
from tests.integration.support.writing import drop_wake_ups, submission

SPEC = StateSpec(period=10, model="test/scripted")
LIMITS = Limits(backlog_chunks=12)


async def append(database: Database, first: int, count: int) -> Appended:
    appender = Appender(database, WakeUps(drop_wake_ups), b"token-key", LIMITS)
    running = asyncio.create_task(appender.run())
    try:
        batch = submission("s", [f"step {n}" for n in range(count)], first=first)
        return await appender.submit(DEFAULT_TENANT, batch)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_a_batch_goes_after_steps_that_wait_for_it(database: Database) -> None:
    SPEC.check(backlog_chunks=LIMITS.backlog_chunks)
    await make(database, [], SPEC)
    await append(database, 1, 9)
    with pytest.raises(Exhausted, match="9 chunks behind"):
        # No worker has checked them yet: they may be due.
        await append(database, 10, 5)
    await state_method(database, Script()).drain(ITEM)
    assert (await append(database, 10, 5)).position == 14
    with pytest.raises(Exhausted, match="14 chunks behind"):
        await append(database, 15, 1)
    await state_method(database, Script()).drain(ITEM)
    assert (await read(database)).applied_position == 10
    assert (await append(database, 15, 5)).position == 19
