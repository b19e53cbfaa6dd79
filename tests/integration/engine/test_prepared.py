"""Statements that connections keep prepared, and what a rollback does to them."""

from service.domain.values.tenancy import DEFAULT_TENANT
from storage.engine.database import Database

TWICE = "SELECT %(number)s * 2"


async def test_a_rollback_does_not_leave_statements_that_are_gone(url: str) -> None:
    database = Database.connect(url, pool_size=1, name="test")
    try:
        async with database.direct(DEFAULT_TENANT) as tx:
            assert await tx.read_all([TWICE], {"number": 2}) == [[(4,)]]
        for _ in range(2):
            async with database.direct(DEFAULT_TENANT) as tx:
                await tx.begin(())
                # The driver prepares this one itself; without a commit all is rolled back.
                assert await tx.run("SELECT %s::int", (1,)) == [(1,)]
            async with database.direct(DEFAULT_TENANT) as tx:
                assert await tx.read_all([TWICE], {"number": 3}) == [[(6,)]]
    finally:
        await database.close()
