"""What the database engine reports to the fault hook, and what is left when it fails there."""

from collections.abc import Iterator
from uuid import uuid4

import pytest
from sqlalchemy import text

from service.domain.values import fault_hook
from service.domain.values.tenancy import DEFAULT_TENANT
from storage.engine.database import Database, Transaction, value
from storage.log import sessions


class Failed(Exception):
    """Raised by the hook."""


class Recorder:
    """Writes down what is reported, and fails at `at`."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.at = ""

    def __call__(self, point: str) -> None:
        self.seen.append(point)
        if point == self.at:
            raise Failed(point)


@pytest.fixture
def hook() -> Iterator[Recorder]:
    recorder = Recorder()
    fault_hook.install(recorder)
    yield recorder
    fault_hook.install(None)


async def locks(database: Database) -> int:
    """Advisory locks of transactions that are open, seen from another connection."""
    async with database.without_tenant() as tx:
        counted = text("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'")
        return int(value(await tx.fetch(counted)))


async def core(tx: Transaction, lock: int) -> None:
    await tx.execute(text(f"SELECT pg_advisory_xact_lock({lock})"))


async def test_a_transaction_reports_each_statement_and_both_sides_of_its_commit(
    database: Database, hook: Recorder
) -> None:
    async with database.transaction(DEFAULT_TENANT, name="test.one") as tx:
        await core(tx, 1)
        await tx.fetch("SELECT %(one)s::int", {"one": 1})
        await tx.pipeline(("SELECT 1", "SELECT 2"), {})
    assert hook.seen == [*["test.one:statement"] * 3, "test.one:commit", "test.one:committed"]


async def test_a_whole_transaction_in_one_round_trip_reports_all_of_it(
    database: Database, hook: Recorder
) -> None:
    async with database.direct(DEFAULT_TENANT, name="test.two") as tx:
        await tx.fetch("SELECT %s::int", (1,))
    whole = ["test.two:statement", "test.two:commit", "test.two:committed"]
    assert hook.seen == whole
    hook.seen.clear()
    async with database.direct(DEFAULT_TENANT, name="test.two") as tx:
        await tx.pipeline(("SELECT 1",), stays_open=True)
        await tx.fetch("SELECT 1", ())
        await tx.commit()
    assert hook.seen == ["test.two:statement", *whole]


async def test_statements_that_commit_by_themselves_report_the_begin_and_the_end(
    database: Database, hook: Recorder
) -> None:
    async with database.without_tenant(name="test.three") as tx:
        await tx.execute(text("SELECT 1"))
    await database.notify([("nobody", "")], name="test.four")
    ends = ("test.three:commit", "test.three:committed", "test.four:commit", "test.four:committed")
    assert hook.seen == list(ends)


@pytest.mark.parametrize("step", ["statement", "commit", "committed"])
async def test_what_fails_at_a_boundary_leaves_no_transaction_open(
    database: Database, hook: Recorder, step: str
) -> None:
    hook.at = f"test.five:{step}"
    with pytest.raises(Failed):
        async with database.transaction(DEFAULT_TENANT, name="test.five") as tx:
            await core(tx, 5)
    with pytest.raises(Failed):
        async with database.direct(DEFAULT_TENANT, name="test.five") as direct:
            await _begin_and_commit(direct)
    hook.at = ""
    assert await locks(database) == 0
    # The connections continue, under other names.
    hook.seen.clear()
    async with database.transaction(DEFAULT_TENANT, name="test.six") as tx:
        await core(tx, 6)
    assert {point.partition(":")[0] for point in hook.seen} == {"test.six"}


async def _begin_and_commit(tx: Transaction) -> None:
    await tx.pipeline(("SELECT pg_advisory_xact_lock(7)",), stays_open=True)
    await tx.commit()


@pytest.mark.parametrize(("step", "kept"), [("statement", 0), ("commit", 0), ("committed", 1)])
async def test_only_what_was_committed_is_there(
    database: Database, hook: Recorder, step: str, kept: int
) -> None:
    key = uuid4()
    hook.at = f"test.seven:{step}"
    with pytest.raises(Failed):
        async with database.transaction(DEFAULT_TENANT, name="test.seven") as tx:
            await sessions.create(tx, key, "s")
    async with database.direct(DEFAULT_TENANT, name="test.eight") as direct:
        assert len(await sessions.existing(direct, [key])) == kept
