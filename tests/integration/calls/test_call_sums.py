"""The sums of calls by what they are for are what the ledger adds up to."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import insert, text

from service.domain.values.tenancy import DEFAULT_TENANT, memory_id, session_key
from storage.engine.database import Database
from storage.spend import costs
from storage.spend.spend import Days, SpendFilter
from storage.tables import call
from tests.integration.spend.test_spend import add_owners, expected, ledger_calls
from tests.support.harness import Servers
from tests.support.properties import examples

KEY = session_key(DEFAULT_TENANT, "a")
PURPOSES = st.sampled_from(["revise", "answer"])
RESIDUALS = st.none() | st.sampled_from(["exact", "cold"])


@st.composite
def rows_of_one_session(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Calls of the session `a`, for different things."""
    made = st.lists(ledger_calls(), min_size=1, max_size=12)
    return [
        {
            **row,
            "tenant_id": DEFAULT_TENANT,
            "session_key": KEY,
            "memory_id": draw(st.sampled_from([None, memory_id(KEY, "m"), memory_id(KEY, "n")])),
            "purpose": draw(PURPOSES),
            "residual": None if row["reply"] is None else draw(RESIDUALS),
        }
        for row in draw(made)
    ]


@pytest.fixture
async def owners(database: Database, servers: Servers, url: str) -> Database:
    await add_owners(database, servers, url)
    return database


@settings(
    max_examples=examples(5),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    deadline=None,
)
@given(rows=rows_of_one_session(), at_once=st.booleans())
async def test_what_a_session_came_to_is_what_its_calls_add_up_to(
    owners: Database, rows: list[dict[str, Any]], at_once: bool
) -> None:
    async with owners.transaction(DEFAULT_TENANT) as tx:
        await tx.execute(text("SAVEPOINT before"))
        if at_once:
            await tx.execute(insert(call).values(rows))
        else:
            for row in rows:
                await tx.execute(insert(call).values(**row))
        lines = await costs.lines(tx, SpendFilter(session_key=KEY))
        classes = await costs.residuals(tx, SpendFilter(session_key=KEY))
        day = rows[0]["created_at"].date()
        of_day = await costs.lines(tx, SpendFilter(session_key=KEY, days=Days(first=day, last=day)))
        await tx.execute(text("ROLLBACK TO SAVEPOINT before"))
    names = {None: "", memory_id(KEY, "m"): "m", memory_id(KEY, "n"): "n"}
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((names[row["memory_id"]], row["purpose"]), []).append(row)
    assert {(one.memory, one.purpose): one.spend for one in lines} == {
        key: expected(some) for key, some in groups.items()
    }
    good = [row for row in rows if row["reply"] is not None]
    assert {one.residual: one.calls for one in classes} == Counter(
        row["residual"] or "" for row in good
    )
    assert sum(one.predicted_cached_tokens for one in classes) == sum(
        row["predicted_cached_tokens"] for row in good
    )
    on_day = [row for row in rows if row["created_at"].date() == day]
    assert sum(one.spend.calls + one.spend.failed_calls for one in of_day) == len(on_day)


async def test_usage_of_a_session_reads_none_of_its_calls(owners: Database) -> None:
    async with owners.transaction(DEFAULT_TENANT) as tx:
        await tx.execute(
            text(
                "INSERT INTO call_sum SELECT session_key, session_key, current_date, 'p', 'm/x',"
                " '', false, tenant_id, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0 FROM session WHERE name = 'a'"
            )
        )
        (cost,) = await costs.lines(tx, SpendFilter(session_key=KEY))
    # There are no calls: the report is of the sums.
    assert cost.spend.calls == 3
