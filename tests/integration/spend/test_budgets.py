"""Budgets in the database count the right calls, hold others, and are never exceeded."""

import asyncio
import random
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest
from sqlalchemy import insert, text, update

from service.domain.calls.ledger import Call, CallScope, Lease, Reservation
from service.domain.prompting.flows import Purpose
from service.domain.spend.budgets import BudgetOwner, BudgetPeriod, BudgetScope, Standing
from service.domain.values.errors import BudgetExhausted
from service.domain.values.tenancy import DEFAULT_TENANT
from service.usecases.calls.call_ledger import CallLedger
from storage.calls import call_ledger
from storage.calls.call_ledger import CallOutcome, PendingReservation, RecordedOutcome
from storage.engine.database import Database, Transaction
from storage.spend import budgets
from storage.tables import call_sum, intent, spend_sum, tenant, tenant_spend_sum
from tests.integration.support.scripted import KEY, MEMORY, make
from tests.integration.support.statements import statements
from tests.support.harness import Servers

DAY, TOTAL = BudgetPeriod.DAY, BudgetPeriod.TOTAL
#: Where budgets are set: on the tenant, the session, the memory.
PLACES: dict[str, tuple[UUID, UUID] | None] = {
    "tenant": None,
    "session": (KEY, KEY),
    "memory": (KEY, MEMORY),
}
SCOPE = CallScope(
    tenant_id=DEFAULT_TENANT, session_key=KEY, memory_id=MEMORY, occasion="revise:1:1"
)


async def put(
    database: Database, place: str, period: BudgetPeriod = TOTAL, **limits: int | None
) -> None:
    async with database.transaction(DEFAULT_TENANT) as tx:
        await budgets.put(
            tx, PLACES[place], period, **{"limit_tokens": None, "limit_micro_usd": None, **limits}
        )


async def check(database: Database, tokens: int, micro_usd: int | None = None) -> None:
    async with database.transaction(DEFAULT_TENANT) as tx:
        await budgets.check(tx, SCOPE, tokens=tokens, micro_usd=micro_usd, key=b"k")


def made(tokens: int, micro_usd: int | None = None, *, key: bytes | None = None) -> Call:
    return Call(
        key=key or uuid4().bytes,
        purpose=Purpose.REVISE,
        template="t/1",
        model="test/scripted",
        reply="r",
        failure=None,
        input_tokens=tokens - 1,
        predicted_cached_tokens=0,
        reported_cached_tokens=None,
        cache_write_tokens=None,
        output_tokens=1,
        cost_micro_usd=micro_usd,
        latency_ms=1,
    )


async def pay(
    database: Database, tokens: int, micro_usd: int | None = None, scope: CallScope = SCOPE
) -> None:
    assert (await _record(database, scope, made(tokens, micro_usd), Lease(fence=1))).is_new


async def _record(
    database: Database, scope: CallScope, call: Call, lease: Lease
) -> RecordedOutcome:
    outcome = CallOutcome(scope=scope, call=call, lease=lease, is_last=True)
    async with database.direct(scope.tenant_id) as tx:
        return (await call_ledger.record(tx, (outcome,)))[0]


async def reserve(tx: Transaction, key: bytes, tokens: int, micro_usd: int = 0) -> None:
    await tx.execute(
        insert(intent).values(
            session_key=KEY,
            key=key,
            tenant_id=DEFAULT_TENANT,
            memory_id=MEMORY,
            purpose="revise",
            model="test/scripted",
            lease_until=datetime.now(UTC) + timedelta(minutes=1),
            reserved_tokens=tokens,
            reserved_micro_usd=micro_usd,
        )
    )


async def a_day_later(tx: Transaction) -> None:
    """Moves all spending to yesterday."""
    for table in (call_sum, spend_sum, tenant_spend_sum):
        await tx.execute(update(table).values(day=table.c.day - 1))


@pytest.mark.parametrize("place", PLACES)
async def test_what_is_spent_and_reserved_counts_and_the_last_token_may_be_taken(
    database: Database, place: str
) -> None:
    await make(database, ["a"])
    await put(database, place, limit_tokens=100)
    await check(database, 100)
    await pay(database, 60)
    async with database.transaction(DEFAULT_TENANT) as tx:
        await reserve(tx, b"other", 30)
    await check(database, 10)
    with pytest.raises(BudgetExhausted) as waits:
        await check(database, 11)
    assert waits.value.waits_for_calls, "what the other call leaves may be enough"
    assert waits.value.resume_seconds is not None
    with pytest.raises(BudgetExhausted) as used_up:
        await check(database, 41)
    error = used_up.value
    assert (error.waits_for_calls, error.resume_seconds) == (False, None)
    assert {name: error.metadata[name] for name in ("limit", "spent", "reserved", "asked")} == {
        "limit": "100",
        "spent": "60",
        "reserved": "30",
        "asked": "41",
    }
    assert "60 tokens are spent, 30 tokens are reserved" in error.message
    names = {"tenant": "the tenant", "session": "session 's'", "memory": "memory 'm' of"}
    assert names[place] in error.message


async def test_the_intent_of_the_call_itself_is_not_counted_against_it(
    database: Database,
) -> None:
    await make(database, ["a"])
    await put(database, "memory", limit_tokens=100)
    async with database.transaction(DEFAULT_TENANT) as tx:
        await reserve(tx, b"k", 100)
    await check(database, 100)


async def test_money_counts_by_its_own_limit_and_needs_a_price(database: Database) -> None:
    await make(database, ["a"])
    await put(database, "session", limit_micro_usd=1_500_000)
    await pay(database, 10_000_000, 1_000_000)
    await check(database, 10_000_000, 500_000)
    with pytest.raises(BudgetExhausted, match=r"\$1\.50 in total.*\$1\.00 are spent.*\$0\.500001"):
        await check(database, 1, 500_001)
    with pytest.raises(BudgetExhausted, match="PALIMPSEST_MODEL_PRICES") as no_price:
        await check(database, 1, None)
    assert no_price.value.resume_seconds, "somebody may set one"
    await put(database, "session", limit_tokens=20_000_000)
    await check(database, 1, None)


async def test_calls_of_others_do_not_count(database: Database) -> None:
    await make(database, ["a"])
    await put(database, "memory", limit_tokens=100)
    no_memory = CallScope(
        tenant_id=DEFAULT_TENANT, session_key=KEY, memory_id=None, occasion="schema:1"
    )
    await pay(database, 100, scope=no_memory)
    await check(database, 100)
    await put(database, "session", limit_tokens=150)
    with pytest.raises(BudgetExhausted, match="the budget of session 's', 150 tokens in total"):
        await check(database, 51)


async def test_a_days_budget_forgets_at_midnight_utc_and_a_total_never(
    database: Database,
) -> None:
    await make(database, ["a"])
    await put(database, "memory", DAY, limit_tokens=100)
    await pay(database, 80)
    with pytest.raises(BudgetExhausted, match="100 tokens a day") as today:
        await check(database, 21)
    assert today.value.resume_seconds is not None
    assert 0 < today.value.resume_seconds <= 86_400
    async with database.transaction(DEFAULT_TENANT) as tx:
        await a_day_later(tx)
    await check(database, 100)
    await put(database, "memory", TOTAL, limit_tokens=150)
    with pytest.raises(BudgetExhausted, match="150 tokens in total"):
        await check(database, 71)
    # Of two that refuse, the one that lasts longest is reported.
    with pytest.raises(BudgetExhausted, match="150 tokens in total"):
        await check(database, 200)


@pytest.mark.parametrize(
    ("at", "is_today"),
    [("today 00:00:00", True), ("today 23:59:59.999", True), ("yesterday 23:59:59.999", False)],
)
async def test_the_day_of_a_call_is_that_of_utc(
    database: Database, servers: Servers, url: str, at: str, is_today: bool
) -> None:
    await make(database, ["a"])
    await put(database, "memory", DAY, limit_tokens=100)
    admin = Database.connect(servers.as_superuser(url), pool_size=1, name="t", role="postgres")
    async with admin.without_tenant() as tx:
        # Whatever time zone a connection has.
        await tx.execute(text("SET TimeZone = 'Pacific/Auckland'"))
        await tx.execute(
            text(
                "INSERT INTO call (session_key, call_id, tenant_id, memory_id, occasion, key,"
                " purpose, template, model, reply, input_tokens, predicted_cached_tokens,"
                " output_tokens, latency_ms, created_at) VALUES (:session, gen_random_uuid(),"
                " :tenant, :memory, 'o', 'k', 'revise', 't', 'm', 'r', 50, 0, 50, 1,"
                " ((now() AT TIME ZONE 'UTC')::date - cast(:days AS integer)"
                " + cast(:clock AS time))"
                " AT TIME ZONE 'UTC')"
            ),
            {
                "session": KEY,
                "tenant": DEFAULT_TENANT,
                "memory": MEMORY,
                "days": int(at.startswith("yesterday")),
                "clock": datetime.strptime(at.partition(" ")[2].partition(".")[0], "%H:%M:%S")
                .time()
                .replace(microsecond=999_000 if "." in at else 0),
            },
        )
    await admin.close()
    if is_today:
        with pytest.raises(BudgetExhausted):
            await check(database, 1)
    else:
        await check(database, 100)


async def test_budgets_of_one_tenant_neither_bind_nor_show_to_another(
    database: Database, servers: Servers, url: str
) -> None:
    await make(database, ["a"])
    other = uuid4()
    admin = Database.connect(servers.as_superuser(url), pool_size=1, name="t", role="postgres")
    async with admin.without_tenant() as connection:
        await connection.execute(insert(tenant).values(tenant_id=other, name="other"))
    await admin.close()
    for place in PLACES:
        await put(database, place, limit_tokens=0)
    theirs = CallScope(tenant_id=other, session_key=KEY, memory_id=MEMORY, occasion="o")
    async with database.transaction(other) as tx:
        await budgets.check(tx, theirs, tokens=1, micro_usd=None)
        assert await budgets.page(tx, named=None, after=("", "", ""), limit=9) == []
        await budgets.put(tx, None, TOTAL, limit_tokens=7, limit_micro_usd=None)
        assert not await budgets.delete(tx, (KEY, KEY), TOTAL)
    async with database.transaction(DEFAULT_TENANT) as tx:
        listed = await budgets.page(tx, named=None, after=("", "", ""), limit=9)
    assert [one.limit_tokens for one in listed] == [0, 0, 0]


async def test_budgets_are_listed_in_pages_with_their_standing(database: Database) -> None:
    await make(database, ["a"])
    await pay(database, 30, 5)
    for place in PLACES:
        for period in (DAY, TOTAL):
            await put(database, place, period, limit_tokens=100)
    after = ("", "", "")
    seen: list[Standing] = []
    while True:
        async with database.transaction(DEFAULT_TENANT) as tx:
            found = await budgets.page(tx, named=None, after=after, limit=2)
        if not found:
            break
        seen += found
        last = found[-1]
        after = (last.owner.session, last.owner.memory, last.period.value)
    assert [(one.owner.scope.value, one.period.value) for one in seen] == [
        (scope, period) for scope in PLACES for period in ("day", "total")
    ]
    assert {(one.spent_tokens, one.spent_micro_usd, one.reserved_tokens) for one in seen} == {
        (30, 5, 0)
    }
    async with database.transaction(DEFAULT_TENANT) as tx:
        of_session = await budgets.page(tx, named="s", after=("", "", ""), limit=9)
    assert [one.owner.scope for one in of_session] == [BudgetScope.SESSION] * 2 + [
        BudgetScope.MEMORY
    ] * 2
    assert of_session[-1].owner == BudgetOwner(scope=BudgetScope.MEMORY, session="s", memory="m")


async def test_without_budgets_a_check_is_one_query(database: Database) -> None:
    await make(database, ["a"])
    async with database.transaction(DEFAULT_TENANT) as tx:
        with statements() as sent:
            await budgets.check(tx, SCOPE, tokens=1, micro_usd=None)
    assert len(sent) == 1
    assert "FOR UPDATE" not in sent[0]


@pytest.mark.prove
@pytest.mark.parametrize("seed", range(3))
async def test_twenty_workers_never_pass_a_budget(url: str, seed: int) -> None:
    """Each begins calls as the gateway does, and ends them with less than it reserved."""
    pool = Database.connect(url, pool_size=20, name="workers")
    try:
        await make(pool, ["a"])
        for place, limit in (("tenant", 900), ("session", 800), ("memory", 300)):
            await put(pool, place, DAY, limit_tokens=limit)
        spent: list[tuple[UUID | None, int]] = []
        await asyncio.gather(
            *(_worker(pool, n, random.Random(seed * 100 + n), spent) for n in range(20))
        )
        async with pool.transaction(DEFAULT_TENANT) as tx:
            standings = await budgets.page(tx, named=None, after=("", "", ""), limit=9)
    finally:
        await pool.close()
    of_memory = sum(tokens for memory, tokens in spent if memory == MEMORY)
    total = sum(tokens for _, tokens in spent)
    assert [one.spent_tokens for one in standings] == [total, total, of_memory]
    assert [one.reserved_tokens for one in standings] == [0, 0, 0]
    assert total <= 800
    assert of_memory <= 300
    assert total > 700, "what could be spent was spent"


async def _worker(
    pool: Database, number: int, chance: random.Random, spent: list[tuple[UUID | None, int]]
) -> None:
    # Half of them work for the memory, the others for no memory of the session.
    scope = CallScope(
        tenant_id=DEFAULT_TENANT,
        session_key=KEY,
        memory_id=MEMORY if number % 2 else None,
        occasion=f"o:{number}",
    )
    while True:
        key, asked = uuid4().bytes, chance.randint(10, 40)
        try:
            lease = await _begin(pool, scope, key, asked)
        except BudgetExhausted as error:
            if not error.waits_for_calls:
                return
            await asyncio.sleep(0.01)
            continue
        await asyncio.sleep(chance.random() * 0.01)
        used = chance.randint(5, asked)
        await _record(pool, scope, made(used, key=key), lease)
        spent.append((scope.memory_id, used))


async def _begin(pool: Database, scope: CallScope, key: bytes, tokens: int) -> Lease:
    asked = Reservation(
        purpose=Purpose.REVISE, model="m", deployment="", tokens=tokens, micro_usd=None
    )
    async with pool.direct(DEFAULT_TENANT) as tx:
        wanted = PendingReservation(scope=scope, key=key, reservation=asked)
        (begun,) = await call_ledger.begin(tx, (wanted,), 60.0)
        if isinstance(begun, BudgetExhausted):
            raise begun
        await tx.commit()
    assert isinstance(begun, Lease)
    return begun


@pytest.mark.parametrize("place", PLACES)
async def test_of_a_group_of_calls_as_many_begin_as_the_budget_allows(
    database: Database, place: str
) -> None:
    await make(database, ["a"])
    await put(database, place, limit_tokens=100)
    ledger = CallLedger(database, lease_seconds=60)
    asked = Reservation(purpose=Purpose.REVISE, model="m", deployment="", tokens=30, micro_usd=None)
    begun = await asyncio.gather(
        *(ledger.begin(SCOPE, bytes([number]), asked) for number in range(12)),
        return_exceptions=True,
    )
    assert [type(one) for one in begun].count(Lease) == 3
    refused = [one for one in begun if not isinstance(one, Lease)]
    assert len(refused) == 9
    assert all(isinstance(one, BudgetExhausted) and one.waits_for_calls for one in refused)
    async with database.transaction(DEFAULT_TENANT) as tx:
        left = await tx.fetch(text("SELECT sum(reserved_tokens) FROM intent"))
        assert left[0][0] == 90
