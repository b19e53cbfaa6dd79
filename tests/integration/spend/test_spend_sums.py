"""The running sums that budgets are checked against are what the rows add up to, always."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import insert, text

from service.app.kinds import use_cases
from service.domain.calls.ledger import CallScope, Lease, Reservation
from service.domain.prompting.flows import Purpose
from service.domain.spend.budgets import BudgetPeriod
from service.domain.values.errors import BudgetExhausted
from service.domain.values.tenancy import DEFAULT_TENANT, memory_id, session_key
from service.usecases.calls.call_ledger import CallLedger
from service.usecases.operations.verify import LocatedDifference, Verifier
from storage.calls import call_ledger
from storage.calls.call_ledger import CallOutcome, PendingReservation
from storage.engine.database import Database, Transaction
from storage.engine.errors import StorageError
from storage.memories import memories
from storage.spend import budgets, sums
from storage.tables import call
from tests.integration.spend.test_budgets import SCOPE, TOTAL, check, made, pay, put
from tests.integration.spend.test_spend import OTHER, ledger_calls, owners
from tests.integration.support.scripted import KEY, MEMORY, SPEC, make
from tests.integration.support.statements import statements
from tests.support.harness import Servers
from tests.support.properties import examples

__all__ = ["owners"]

DAY = BudgetPeriod.DAY


async def wrong(tx: Transaction, sessions: Sequence[UUID]) -> list[object]:
    """Returns every sum that differs from the rows, or from the ledger."""
    found: list[object] = [*await sums.sums_off(tx, None)]
    for key in sessions:
        found += [*await sums.days_off(tx, key), *await sums.sums_off(tx, key)]
    return found


@settings(
    max_examples=examples(25),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    deadline=None,
)
@given(groups=st.lists(st.lists(ledger_calls(), min_size=1, max_size=6), max_size=6))
async def test_the_sums_are_those_of_the_rows(
    owners: Database, groups: list[list[dict[str, Any]]]
) -> None:
    for tenant_id in (DEFAULT_TENANT, OTHER):
        async with owners.transaction(tenant_id) as tx:
            await tx.execute(text("SAVEPOINT before"))
            for group in groups:
                mine = [row for row in group if row["tenant_id"] == tenant_id]
                if mine:
                    await tx.execute(insert(call).values(mine))
            keys = [session_key(tenant_id, name) for name in ("a", "b")]
            assert await wrong(tx, keys) == []
            rows = [row for group in groups for row in group if row["tenant_id"] == tenant_id]
            stored = await tx.fetch(
                text("SELECT coalesce(sum(tokens), 0), max(day) FROM tenant_spend_sum")
            )
            tokens, day = stored[0]
            assert tokens == sum(row["input_tokens"] + row["output_tokens"] for row in rows)
            assert day == max((row["created_at"].date() for row in rows), default=None)
            await tx.execute(text("ROLLBACK TO SAVEPOINT before"))


async def _spend_much(database: Database, admin_url: str, sessions: range) -> None:
    """Inserts rows of other sessions of the tenant, which do not exist."""
    with psycopg.connect(admin_url, autocommit=True) as connection:
        connection.execute("SET session_replication_role = replica")
        connection.execute(
            "INSERT INTO call_sum SELECT md5(s::text)::uuid, md5(s::text)::uuid,"
            " (now() AT TIME ZONE 'UTC')::date - d, 'p', 'm', '', false, %s,"
            " 1, 7, 0, 0, 0, 0, 0, 0, 0, 0"
            " FROM unnest(%s::int[]) s CROSS JOIN generate_series(0, 9) d",
            (DEFAULT_TENANT, list(sessions)),
        )
    async with database.transaction(DEFAULT_TENANT) as tx:
        await sums.mend(tx, None)


_READ = """
SELECT coalesce(sum(seq_tup_read + coalesce(idx_tup_fetch, 0)), 0)::bigint
FROM pg_stat_xact_user_tables
WHERE relname IN ('call_sum', 'spend_sum', 'tenant_spend_sum', 'intent', 'budget', 'tenant_budget')
"""


async def _rows_read(database: Database) -> int:
    async with database.transaction(DEFAULT_TENANT) as tx:
        # What the connection did before may be in it still.
        before = (await tx.fetch(text(_READ)))[0][0]
        await budgets.check(tx, SCOPE, tokens=1, micro_usd=None, key=b"k")
        return int((await tx.fetch(text(_READ)))[0][0] - before)


async def test_a_check_reads_no_more_rows_however_much_was_spent(
    database: Database, servers: Servers, url: str
) -> None:
    await make(database, ["a"])
    for place in ("tenant", "session", "memory"):
        for period in BudgetPeriod:
            await put(database, place, period, limit_tokens=10**9)
    await pay(database, 5)
    await _spend_much(database, servers.as_superuser(url), range(1))
    few = await _rows_read(database)
    assert few > 0
    await _spend_much(database, servers.as_superuser(url), range(1, 200))
    assert await _rows_read(database) == few
    async with database.transaction(DEFAULT_TENANT) as tx:
        tenant = (await budgets.page(tx, named=None, after=("", "", ""), limit=2))[1]
    assert (tenant.period, tenant.spent_tokens) == (TOTAL, 200 * 10 * 7 + 5)


async def _rows_read_by_a_beginning(database: Database) -> int:
    """Returns the same of the statements that a connection keeps the plans of."""
    asked = Reservation(purpose=Purpose.REVISE, model="m", deployment="", tokens=1, micro_usd=None)
    async with database.direct(DEFAULT_TENANT) as tx:
        await tx.pipeline((f"SET app.tenant = '{DEFAULT_TENANT}'",))
        (((before,),),) = await tx.pipeline((_READ,))
        (begun,) = await call_ledger.begin(
            tx, (PendingReservation(scope=SCOPE, key=b"k", reservation=asked),), 60.0
        )
        assert isinstance(begun, Lease)
        (((after,),),) = await tx.pipeline((_READ,))
        # Not undone: with that the connection forgets its plans.
        await tx.pipeline(("DELETE FROM intent",))
        await tx.commit()
    return int(after - before)


async def test_plans_that_were_made_for_empty_tables_read_no_more_when_they_are_full(
    servers: Servers, url: str
) -> None:
    database = Database.connect(url, pool_size=1, name="test")
    try:
        await make(database, ["a"])
        await put(database, "tenant", limit_tokens=10**9)
        with psycopg.connect(servers.as_superuser(url), autocommit=True) as connection:
            connection.execute("VACUUM ANALYZE")
        await _spend_much(database, servers.as_superuser(url), range(1))
        # So often that the connection keeps plans for whatever values there are.
        read = [await _rows_read_by_a_beginning(database) for _ in range(12)]
        await _spend_much(database, servers.as_superuser(url), range(1, 200))
        with psycopg.connect(servers.as_superuser(url), autocommit=True) as connection:
            connection.execute("SET session_replication_role = replica")
            connection.execute(
                "INSERT INTO budget (session_key, owner_id, period, tenant_id, limit_tokens)"
                " SELECT md5(s::text)::uuid, md5(s::text)::uuid, 'total', %s, 7"
                " FROM generate_series(1, 2000) s",
                (DEFAULT_TENANT,),
            )
            connection.execute(
                "INSERT INTO spend_sum SELECT md5(s::text)::uuid, md5(s::text)::uuid, %s, 1, 1, 1,"
                " now()::date, 1, 1, 1 FROM generate_series(1, 2000) s",
                (DEFAULT_TENANT,),
            )
        assert await _rows_read_by_a_beginning(database) <= max(read)
    finally:
        await database.close()


async def test_a_group_at_a_budget_that_is_nearly_used_is_checked_in_two_transactions(
    database: Database,
) -> None:
    await make(database, ["a"])
    scopes = []
    async with database.transaction(DEFAULT_TENANT) as tx:
        for number in range(64):
            identity = memory_id(KEY, f"m{number}")
            await memories.create(
                tx,
                session_key=KEY,
                memory_id=identity,
                name=f"m{number}",
                spec=SPEC,
                head=0,
                value="{}",
                digest=b"",
            )
            scopes.append(
                CallScope(
                    tenant_id=DEFAULT_TENANT, session_key=KEY, memory_id=identity, occasion="o"
                )
            )
    await put(database, "tenant", limit_tokens=300)
    asked = Reservation(purpose=Purpose.REVISE, model="m", deployment="", tokens=10, micro_usd=None)
    ledger = CallLedger(database, lease_seconds=60)
    with statements() as sent:
        begun = await asyncio.gather(
            *(ledger.begin(scope, bytes([number]), asked) for number, scope in enumerate(scopes)),
            return_exceptions=True,
        )
    assert [type(one) for one in begun].count(Lease) == 30
    assert [type(one) for one in begun].count(BudgetExhausted) == 34
    # The first two begin at once, each alone; the others make a group.
    assert sum(one.startswith("BEGIN") for one in sent) <= 4
    assert len(sent) <= 45
    async with database.transaction(DEFAULT_TENANT) as tx:
        left = await tx.fetch(text("SELECT count(*), sum(reserved_tokens) FROM intent"))
        assert tuple(left[0]) == (30, 300), "what was refused left nothing behind"


async def test_of_a_group_each_is_refused_by_its_own_budgets(database: Database) -> None:
    await make(database, ["a"])
    no_memory = CallScope(
        tenant_id=DEFAULT_TENANT, session_key=KEY, memory_id=None, occasion="schema:1"
    )
    await put(database, "memory", limit_tokens=50)
    await put(database, "session", limit_tokens=100)
    await put(database, "tenant", limit_tokens=1000)

    def asked(tokens: int) -> Reservation:
        return Reservation(
            purpose=Purpose.REVISE, model="m", deployment="", tokens=tokens, micro_usd=None
        )

    wanted = [(SCOPE, 30), (SCOPE, 30), (no_memory, 60), (SCOPE, 20), (no_memory, 60)]
    async with database.direct(DEFAULT_TENANT) as tx:
        begun = await call_ledger.begin(
            tx,
            [
                PendingReservation(scope=scope, key=bytes([number]), reservation=asked(tokens))
                for number, (scope, tokens) in enumerate(wanted)
            ],
            60.0,
        )
    said = [one.metadata["scope"] if isinstance(one, BudgetExhausted) else None for one in begun]
    assert [one and str(one) for one in said] == [
        None,
        "memory 'm' of session 's'",
        None,
        "session 's'",
        "session 's'",
    ]


async def test_what_is_spent_today_counts_also_when_the_clock_went_back(
    database: Database, servers: Servers, url: str
) -> None:
    """Then there is a newer day, and the sums have the newest one's figures alone."""
    await make(database, ["a"])
    await pay(database, 60)
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    async with database.transaction(DEFAULT_TENANT) as tx:
        await tx.execute(
            insert(call).values(
                session_key=KEY,
                call_id=uuid4(),
                tenant_id=DEFAULT_TENANT,
                memory_id=MEMORY,
                occasion="o",
                key=b"ahead",
                purpose="revise",
                template="t",
                model="m",
                reply="r",
                input_tokens=9,
                predicted_cached_tokens=0,
                output_tokens=1,
                latency_ms=1,
                created_at=tomorrow,
            )
        )
    for place in ("tenant", "session", "memory"):
        await put(database, place, DAY, limit_tokens=100)
        await check(database, 40)
        with pytest.raises(BudgetExhausted, match="60 tokens are spent"):
            await check(database, 41)
        async with database.transaction(DEFAULT_TENANT) as tx:
            assert await wrong(tx, [KEY]) == []
            place_of = {"tenant": None, "session": (KEY, KEY), "memory": (KEY, MEMORY)}[place]
            await budgets.delete(tx, place_of, DAY)


class ProgressWatcher:
    """Looks at budgets all the time, and keeps whatever was passed."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.looks = 0
        self.passed: list[str] = []

    async def look(self) -> None:
        while True:
            try:
                async with self._database.transaction(DEFAULT_TENANT) as tx:
                    found = await budgets.page(tx, named=None, after=("", "", ""), limit=9)
            except StorageError:
                continue
            self.looks += 1
            for one in found:
                assert one.limit_tokens is not None
                if one.spent_tokens + one.reserved_tokens > one.limit_tokens:
                    self.passed.append(f"{one}")
            await asyncio.sleep(0.002)


async def _worker(
    pool: Database, number: int, chance: random.Random, kill: Callable[[], Awaitable[None]]
) -> None:
    """Begins calls and ends them, with less than it reserved; or dies in between.

    Now and then connections are lost, its own or others'.
    """
    scope = CallScope(
        tenant_id=DEFAULT_TENANT,
        session_key=KEY,
        memory_id=MEMORY if number % 2 else None,
        occasion=f"o:{number}",
    )
    ledger = CallLedger(pool, lease_seconds=60)
    for _ in range(12):
        if chance.random() < 0.15:
            await kill()
        key, tokens = uuid4().bytes, chance.randint(10, 40)
        asked = Reservation(
            purpose=Purpose.REVISE, model="m", deployment="", tokens=tokens, micro_usd=None
        )
        try:
            lease = await ledger.begin(scope, key, asked)
        except BudgetExhausted as error:
            if not error.waits_for_calls:
                return
            await asyncio.sleep(0.01)
            continue
        except StorageError:
            # The connection was lost: whether it has begun is unknown.
            continue
        assert isinstance(lease, Lease)
        match chance.randint(0, 9):
            case 0:
                # It dies: what it reserved stays reserved.
                continue
            case 1:
                dying = asyncio.create_task(
                    ledger.record(scope, made(tokens, key=key), lease, last=True)
                )
                await asyncio.sleep(chance.random() * 0.005)
                dying.cancel()
                await asyncio.wait((dying,))
            case _:
                done = made(chance.randint(5, tokens), key=key)
                outcome = CallOutcome(scope=scope, call=done, lease=lease, is_last=True)
                while True:
                    try:
                        async with pool.direct(DEFAULT_TENANT) as tx:
                            await call_ledger.record(tx, (outcome,))
                        break
                    except StorageError:
                        continue


_KILL = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE application_name = 'workers' AND datname = current_database()
ORDER BY random() LIMIT 2
"""


@pytest.mark.prove
@pytest.mark.parametrize("seed", range(2))
async def test_no_budget_is_passed_whatever_dies(servers: Servers, url: str, seed: int) -> None:
    pool = Database.connect(url, pool_size=12, name="workers")
    watching = Database.connect(url, pool_size=1, name="watching")
    watcher = ProgressWatcher(watching)

    async def kill() -> None:
        async with await psycopg.AsyncConnection.connect(
            servers.as_superuser(url), autocommit=True
        ) as connection:
            await connection.execute(_KILL)

    try:
        await make(watching, ["a"])
        for place, limit in (("tenant", 2400), ("session", 2200), ("memory", 800)):
            await put(watching, place, DAY, limit_tokens=limit)
            await put(watching, place, TOTAL, limit_tokens=limit)
        looking = asyncio.create_task(watcher.look())
        await asyncio.gather(
            *(_worker(pool, n, random.Random(f"{seed}:{n}"), kill) for n in range(16))
        )
        looking.cancel()
        await asyncio.wait((looking,))
        async with watching.snapshot(DEFAULT_TENANT) as tx:
            off = await wrong(tx, [KEY])
            (spent,) = (await tx.fetch(text("SELECT sum(input_tokens + output_tokens) FROM call")))[
                0
            ]
            standing = (await budgets.page(tx, named=None, after=("", "", ""), limit=9))[0]
    finally:
        await pool.close()
        await watching.close()
    assert watcher.passed == []
    assert watcher.looks > 0
    assert off == []
    assert standing.spent_tokens == spent > 0


async def test_wrong_sums_are_reported_and_corrected_while_the_service_runs(
    database: Database, servers: Servers, url: str
) -> None:
    await make(database, ["a"])
    await pay(database, 50, 7)
    verifier = Verifier(database, use_cases())

    async def told() -> list[str]:
        found = [one async for one in verifier.verify(DEFAULT_TENANT, "s")]
        found += [one async for one in verifier.verify_tenant(DEFAULT_TENANT)]
        return [
            f"{one.difference.name} {one.difference.place}"
            for one in found
            if isinstance(one, LocatedDifference) and one.part == "spend"
        ]

    assert await told() == []
    with psycopg.connect(servers.as_superuser(url), autocommit=True) as connection:
        connection.execute("UPDATE spend_sum SET tokens = tokens + 5, day_micro_usd = 0")
        connection.execute("DELETE FROM tenant_spend_sum")
        connection.execute("UPDATE tenant_spend_sum SET day = day - 1")
    assert sorted(await told()) == [
        "spend.sum memory m",
        "spend.sum session",
        "spend.sum the tenant",
    ]
    paying = [asyncio.create_task(pay(database, 3, 1)) for _ in range(8)]
    for session in ("s", None):
        await verifier.repair(DEFAULT_TENANT, session)
        await verifier.repair(DEFAULT_TENANT, session)
    await asyncio.gather(*paying)
    assert await told() == []
    async with database.transaction(DEFAULT_TENANT) as tx:
        rows = await tx.fetch(text("SELECT sum(tokens), sum(day_micro_usd) FROM tenant_spend_sum"))
        assert tuple(rows[0]) == (50 + 8 * 3, 7 + 8)


async def test_without_calls_there_is_nothing_to_add(database: Database) -> None:
    """A statement that writes none, since each was there already, changes no sum."""
    await make(database, ["a"])
    done = made(10, key=b"once")
    outcome = CallOutcome(scope=SCOPE, call=done, lease=Lease(fence=1), is_last=True)
    for number in range(2):
        again = CallOutcome(scope=SCOPE, call=done, lease=Lease(fence=1), is_last=True)
        async with database.direct(DEFAULT_TENANT) as tx:
            (recorded,) = await call_ledger.record(tx, (again if number else outcome,))
        assert recorded.is_new == (number == 0)
    async with database.transaction(DEFAULT_TENANT) as tx:
        assert await wrong(tx, [KEY]) == []
        rows = await tx.fetch(text("SELECT sum(tokens) FROM tenant_spend_sum"))
        assert rows[0][0] == 10
