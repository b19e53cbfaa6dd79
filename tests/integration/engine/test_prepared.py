"""Statements that connections keep prepared, and what a rollback does to them."""

from service.domain.values.tenancy import DEFAULT_TENANT
from storage.engine.database import Database

TWICE = "SELECT %(number)s * 2"


async def test_a_rollback_does_not_leave_statements_that_are_gone(url: str) -> None:
    database = Database.connect(url, pool_size=1, name="test")
    try:
        async with database.direct(DEFAULT_TENANT) as tx:
            assert await tx.pipeline([TWICE], {"number": 2}, snapshot=True) == [[(4,)]]
        for _ in range(2):
            async with database.direct(DEFAULT_TENANT) as tx:
                await tx.pipeline((), stays_open=True)
                # The driver prepares this one itself; without a commit all is rolled back.
                assert await tx.fetch("SELECT %s::int", (1,)) == [(1,)]
            async with database.direct(DEFAULT_TENANT) as tx:
                assert await tx.pipeline([TWICE], {"number": 3}, snapshot=True) == [[(6,)]]
    finally:
        await database.close()
