"""Sealed trees, and those about to be sealed: they delay no append, and are never woken."""

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest
from sqlalchemy import text

from service.app.kinds import memories_of
from service.domain.values.errors import Exhausted
from service.domain.values.tenancy import DEFAULT_TENANT
from service.domain.values.work_items import WorkItem
from service.settings.config import Limits
from service.usecases.log.append import Appender
from service.usecases.log.wake_ups import WakeUps
from service.usecases.memories.progress_watcher import ProgressWatcher
from service.usecases.tree.trees import Trees
from storage.engine.database import Database
from tests.integration.support.forests import KEY, SESSION, TREE, TREE_ID, make_tree
from tests.integration.support.writing import drop_wake_ups, submission
from tests.support.runnable import runnable as runnable_now

BACKLOG = 3


class RecordedWakeUps(WakeUps):
    """Wake-ups that are recorded, and sent to no worker."""

    def __init__(self) -> None:
        super().__init__(drop_wake_ups)
        self.items: list[WorkItem] = []

    def add(self, items: Iterable[WorkItem], *, wanted: bool = False) -> None:
        self.items += items


async def seal(database: Database, wake_ups: WakeUps) -> None:
    memories = memories_of(database, wake_ups, ProgressWatcher(database), b"token-key", Limits())
    await Trees(database, memories).seal(DEFAULT_TENANT, SESSION, TREE)


async def change(database: Database, changes: str) -> None:
    async with database.transaction(DEFAULT_TENANT) as tx:
        statement = text(f"UPDATE memory SET {changes} WHERE session_key = :key")
        assert await tx.execute(statement, {"key": KEY}) == 1


async def row(database: Database) -> Any:
    async with database.transaction(DEFAULT_TENANT) as tx:
        found = await tx.fetch(text("SELECT * FROM memory WHERE session_key = :key"), {"key": KEY})
        return found[0]


async def append(database: Database, wake_ups: WakeUps, count: int) -> None:
    """Appends chunks one by one to the two that are there."""
    appender = Appender(database, wake_ups, b"token-key", Limits(backlog_chunks=BACKLOG))
    running = asyncio.create_task(appender.run())
    try:
        for number in range(count):
            one = submission(SESSION, ["more"], first=3 + number)
            await appender.submit(DEFAULT_TENANT, one)
    finally:
        running.cancel()


async def runnable(database: Database) -> set[Any]:
    async with database.sweeping() as tx:
        return {item.item_id for item in await runnable_now(tx, 10)}


async def test_a_tree_that_reads_on_holds_up(database: Database) -> None:
    await make_tree(database, ["one", "two"])
    with pytest.raises(Exhausted):
        await append(database, RecordedWakeUps(), 5)


async def test_what_a_closing_tree_will_not_read_is_no_backlog(database: Database) -> None:
    await make_tree(database, ["one", "two"])
    wake_ups = RecordedWakeUps()
    await seal(database, wake_ups)
    assert [item.item_id for item in wake_ups.items] == [TREE_ID], "it is woken to be closed"
    await append(database, wake_ups, 9)
    assert (await row(database)).seal_position == 2
    assert TREE_ID in await runnable(database)


async def test_a_closed_tree_is_left_alone(database: Database) -> None:
    await make_tree(database, ["one", "two"])
    await seal(database, RecordedWakeUps())
    await change(database, "status = 'sealed', has_work = false")
    before = await row(database)
    wake_ups = RecordedWakeUps()
    await append(database, wake_ups, 9)
    await seal(database, wake_ups)
    assert wake_ups.items == []
    assert await runnable(database) == set()
    after = await row(database)
    assert (after.seal_position, after.ready_at, after.status) == (2, before.ready_at, "sealed")
    # Neither by the first chunk nor by those that go the short way.
    assert not after.has_work


async def test_a_second_wish_keeps_the_first_place_and_does_not_hurry(database: Database) -> None:
    await make_tree(database, ["one", "two"])
    await seal(database, RecordedWakeUps())
    # It failed meanwhile, and waits for its next try.
    await change(database, "attempts = 2, ready_at = now() + interval '1 hour'")
    before = await row(database)
    await append(database, RecordedWakeUps(), 1)
    await seal(database, RecordedWakeUps())
    after = await row(database)
    assert (after.seal_position, after.ready_at) == (2, before.ready_at)
