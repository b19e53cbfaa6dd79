"""The sums of spending equal those of the ledger, whatever process writes there."""

from datetime import UTC, date, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import insert, text

from service.domain.values.tenancy import DEFAULT_TENANT, memory_id, session_key
from storage.engine.database import Database
from storage.log import sessions
from storage.memories import memories
from storage.spend import spend
from storage.spend.spend import Days, Spend, SpendFilter, SpendLevel
from storage.tables import call, tenant
from tests.integration.support.scripted import SPEC
from tests.support.harness import Servers
from tests.support.properties import examples

TODAY = datetime.now(UTC).date()
#: Sessions and memories of two tenants; None is a call that no memory made.
OTHER = UUID("00000000-0000-4000-8000-000000000002")
OWNERS = [
    (tenant_id, name, memory)
    for tenant_id in (DEFAULT_TENANT, OTHER)
    for name in ("a", "b")
    for memory in (None, "m", "n")
]
tokens = st.integers(0, 2**40)


@st.composite
def ledger_calls(draw: st.DrawFn) -> dict[str, Any]:
    """Returns a row of the ledger, of any owner, at any moment of four days."""
    tenant_id, name, memory = draw(st.sampled_from(OWNERS))
    key = session_key(tenant_id, name)
    failed = draw(st.booleans())
    cached = draw(st.none() | tokens)
    seconds = draw(st.integers(-2 * 86_400, 2 * 86_400 - 1))
    midnight = datetime(TODAY.year, TODAY.month, TODAY.day, tzinfo=UTC)
    return {
        "session_key": key,
        "call_id": uuid4(),
        "tenant_id": tenant_id,
        "memory_id": None if memory is None else memory_id(key, memory),
        "occasion": "o",
        "key": uuid4().bytes,
        "purpose": "revise",
        "template": "t/1",
        "model": "m/x",
        "reply": None if failed else "r",
        "failure": "no" if failed else None,
        "input_tokens": 0 if failed else draw(tokens),
        "predicted_cached_tokens": 0 if failed else draw(tokens),
        "reported_cached_tokens": None if failed else cached,
        "cache_write_tokens": None if failed else draw(st.none() | tokens),
        "output_tokens": 0 if failed else draw(tokens),
        "cost_micro_usd": None if failed else draw(st.none() | tokens),
        "latency_ms": 1,
        "created_at": midnight + timedelta(seconds=seconds),
    }


def expected(rows: list[dict[str, Any]]) -> Spend:
    """Returns the sums of rows, by the book."""
    good = [row for row in rows if row["reply"] is not None]
    names = ("input_tokens", "predicted_cached_tokens", "output_tokens")
    maybe = ("reported_cached_tokens", "cache_write_tokens", "cost_micro_usd")
    return Spend(
        calls=len(good),
        failed_calls=len(rows) - len(good),
        unreported_calls=sum(row["reported_cached_tokens"] is None for row in good),
        unpriced_calls=sum(row["cost_micro_usd"] is None for row in good),
        **{name: sum(row[name] for row in rows) for name in names},
        **{name: sum(row[name] or 0 for row in rows) for name in maybe},
    )


async def add_owners(database: Database, servers: Servers, url: str) -> None:
    """Two tenants with two sessions and two memories in each."""
    admin = Database.connect(servers.as_superuser(url), pool_size=1, name="t", role="postgres")
    async with admin.without_tenant() as connection:
        await connection.execute(insert(tenant).values(tenant_id=OTHER, name="other"))
    await admin.close()
    for tenant_id, name, memory in OWNERS:
        key = session_key(tenant_id, name)
        async with database.transaction(tenant_id) as tx:
            if memory is None:
                await sessions.create(tx, key, name)
                continue
            await memories.create(
                tx,
                session_key=key,
                memory_id=memory_id(key, memory),
                name=memory,
                spec=SPEC,
                head=0,
                value="{}",
                digest=b"",
            )


@pytest.fixture
async def owners(database: Database, servers: Servers, url: str) -> Database:
    await add_owners(database, servers, url)
    return database


async def read(
    database: Database, tenant_id: UUID, level: SpendLevel, *, by_day: bool, size: int
) -> dict[tuple[str, str, date | None], Spend]:
    """Returns all lines, page by page."""
    found: dict[tuple[str, str, date | None], Spend] = {}
    after: tuple[str, str, str] | None = None
    while True:
        async with database.transaction(tenant_id) as tx:
            page = await spend.lines(
                tx, SpendFilter(), level, by_day=by_day, after=after, limit=size
            )
        for line in page:
            assert (line.session, line.memory, line.day) not in found, "each line comes once"
            found[line.session, line.memory, line.day] = line.spend
        if len(page) < size:
            return found
        last = page[-1]
        after = (last.session, last.memory, last.day.isoformat() if last.day else "")


@settings(
    max_examples=examples(15),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    deadline=None,
)
@given(rows=st.lists(ledger_calls(), min_size=1, max_size=12), old=st.booleans())
async def test_the_sums_are_those_of_the_ledger(
    owners: Database, rows: list[dict[str, Any]], old: bool
) -> None:
    for tenant_id in (DEFAULT_TENANT, OTHER):
        async with owners.transaction(tenant_id) as tx:
            # The statement of the release before names no column of this one.
            await tx.execute(text("SAVEPOINT before"))
            await tx.execute(text("SELECT 1"))
            mine = [row for row in rows if row["tenant_id"] == tenant_id]
            before = await spend.total(tx, SpendFilter())
            for row in mine:
                if old:
                    await tx.execute(_OLD_INSERT, row)
                else:
                    await tx.execute(insert(call).values(**row, deployment="d"))
            after = await spend.total(tx, SpendFilter())
            wanted = expected(mine)
            gained = {
                name: getattr(after, name) - getattr(before, name)
                for name in Spend.__dataclass_fields__
            }
            assert Spend(**gained) == wanted
            await _compare_lines(tx, mine, before == Spend())
            await tx.execute(text("ROLLBACK TO SAVEPOINT before"))


_OLD_INSERT = text(
    "INSERT INTO call (session_key, call_id, tenant_id, memory_id, occasion, key, purpose,"
    " template, model, reply, failure, input_tokens, predicted_cached_tokens,"
    " reported_cached_tokens, cache_write_tokens, output_tokens, cost_micro_usd, latency_ms,"
    " created_at) VALUES (:session_key, :call_id, :tenant_id, :memory_id, :occasion, :key,"
    " :purpose, :template, :model, :reply, :failure, :input_tokens, :predicted_cached_tokens,"
    " :reported_cached_tokens, :cache_write_tokens, :output_tokens, :cost_micro_usd,"
    " :latency_ms, :created_at)"
)


async def _compare_lines(tx: Any, rows: list[dict[str, Any]], fresh: bool) -> None:
    assert fresh, "every example begins with an empty ledger"
    names = {
        (session_key(t, s), None if m is None else memory_id(session_key(t, s), m)): (s, m or "")
        for t, s, m in OWNERS
    }
    for level in SpendLevel:
        for by_day in (False, True):
            groups: dict[tuple[str, str, date | None], list[dict[str, Any]]] = {}
            for row in rows:
                s, m = names[row["session_key"], row["memory_id"]]
                key = (
                    "" if level is SpendLevel.TENANT else s,
                    m if level is SpendLevel.MEMORY else "",
                    row["created_at"].date() if by_day else None,
                )
                groups.setdefault(key, []).append(row)
            found = await spend.lines(
                tx, SpendFilter(), level, by_day=by_day, after=None, limit=1000
            )
            assert {(o.session, o.memory, o.day): o.spend for o in found} == {
                key: expected(of_key) for key, of_key in groups.items()
            }


async def test_lines_come_in_pages_and_filters_bound_them(owners: Database) -> None:
    midnight = datetime(TODAY.year, TODAY.month, TODAY.day, tzinfo=UTC)
    key = session_key(DEFAULT_TENANT, "a")
    for days in range(3):
        # The last moment of a day, and the first of the next one.
        for at in (
            midnight - timedelta(days=days, microseconds=1),
            midnight - timedelta(days=days),
        ):
            async with owners.transaction(DEFAULT_TENANT) as tx:
                await tx.execute(
                    _OLD_INSERT,
                    {
                        "session_key": key,
                        "call_id": uuid4(),
                        "tenant_id": DEFAULT_TENANT,
                        "memory_id": memory_id(key, "m") if days else None,
                        "occasion": "o",
                        "key": uuid4().bytes,
                        "purpose": "revise",
                        "template": "t",
                        "model": "m",
                        "reply": "r",
                        "failure": None,
                        "input_tokens": 10**days,
                        "predicted_cached_tokens": 0,
                        "reported_cached_tokens": None,
                        "cache_write_tokens": None,
                        "output_tokens": 0,
                        "cost_micro_usd": None,
                        "latency_ms": 1,
                        "created_at": at,
                    },
                )
    by_day = await read(owners, DEFAULT_TENANT, SpendLevel.MEMORY, by_day=True, size=2)
    assert {
        (memory, (TODAY - day).days if day else None): one.input_tokens
        for (_, memory, day), one in by_day.items()
    } == {("", 0): 1, ("", 1): 1, ("m", 1): 10, ("m", 2): 110, ("m", 3): 100}
    assert await read(owners, OTHER, SpendLevel.MEMORY, by_day=True, size=9) == {}
    yesterday = TODAY - timedelta(1)
    one_day = SpendFilter(days=Days(first=yesterday, last=yesterday))
    for wanted, sums in (
        (one_day, 11),
        (SpendFilter(memory_id=memory_id(key, "m"), session_key=key), 220),
        (SpendFilter(session_key=session_key(DEFAULT_TENANT, "b")), 0),
        (SpendFilter(days=Days(first=TODAY)), 1),
        (SpendFilter(days=Days(last=TODAY - timedelta(3))), 100),
    ):
        async with owners.transaction(DEFAULT_TENANT) as tx:
            assert (await spend.total(tx, wanted)).input_tokens == sums
