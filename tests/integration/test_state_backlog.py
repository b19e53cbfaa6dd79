"""Steps that are recent are no backlog: a memory that rests is not behind with them."""

import asyncio

import pytest

from service.config import Limits
from service.domain.errors import Exhausted
from service.domain.state.spec import StateSpec
from service.domain.tenancy import DEFAULT_TENANT
from service.usecases.append import Appender
from service.usecases.hints import Hints
from service.usecases.lanes import Appended
from storage.database import Database
from tests.integration.scripted import ITEM, Script, compressor, make, read
from tests.integration.writing import drop_hints, submission

SPEC = StateSpec(period=10, model="test/scripted")
LIMITS = Limits(backlog_chunks=12)


async def append(database: Database, first: int, count: int) -> Appended:
    appender = Appender(database, Hints(drop_hints), b"token-key", LIMITS)
    running = asyncio.create_task(appender.run())
    try:
        batch = submission("s", [f"step {n}" for n in range(count)], first=first)
        return await appender.submit(DEFAULT_TENANT, batch)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_a_batch_goes_behind_steps_that_wait_for_it(database: Database) -> None:
    SPEC.check(backlog_chunks=LIMITS.backlog_chunks)
    await make(database, [], SPEC)
    await append(database, 1, 9)
    with pytest.raises(Exhausted, match="9 chunks behind"):
        # Nobody has looked at them yet: they may be due.
        await append(database, 10, 5)
    await compressor(database, Script()).drain(ITEM)
    assert (await append(database, 10, 5)).position == 14
    with pytest.raises(Exhausted, match="14 chunks behind"):
        await append(database, 15, 1)
    await compressor(database, Script()).drain(ITEM)
    assert (await read(database)).applied_position == 10
    assert (await append(database, 15, 5)).position == 19
