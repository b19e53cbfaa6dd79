"""A transaction that is cancelled in the midst of a statement ends as one that was cancelled."""

import asyncio
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from sqlalchemy import text

from service.domain.values.tenancy import DEFAULT_TENANT
from storage.engine.database import Database, value

MANY = text("SELECT set_config('test.last', :value, true)")
ROWS = [{"value": "one"}, {"value": "two"}]


@pytest.fixture
def cancelled_as_it_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """The task is cancelled as its first pipeline begins, on a loop that was busy long."""
    enter = psycopg.AsyncPipeline._enter_gen
    is_first = True

    def entering(pipeline: psycopg.AsyncPipeline) -> Iterator[Any]:
        nonlocal is_first
        task = asyncio.current_task()
        if is_first and task is not None:
            is_first = False
            task.cancel()
        yield from enter(pipeline)

    monkeypatch.setattr(psycopg.AsyncPipeline, "_enter_gen", entering)
    monkeypatch.setattr(psycopg.waiting, "MAX_BUSY_TIME", 0.0)


@pytest.mark.usefixtures("cancelled_as_it_begins")
async def test_many_rows_that_are_cancelled_as_they_begin_spoil_no_connection(url: str) -> None:
    database = Database.connect(url, pool_size=1, name="test")

    async def write() -> Any:
        async with database.transaction(DEFAULT_TENANT) as tx:
            await tx.execute(MANY, ROWS)
            return value(await tx.fetch(text("SELECT 1")))

    try:
        with pytest.raises(asyncio.CancelledError):
            await asyncio.create_task(write())
        assert await asyncio.create_task(write()) == 1
    finally:
        await database.close()
