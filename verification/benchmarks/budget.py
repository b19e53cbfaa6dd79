"""What the check of budgets costs before a call, with few and with many rows of what was spent.

Two tenants have the same budgets, of the tenant, a session and a memory, for the day and in all.
One has spent in 300 rows, the other in ROWS (`--rows`), which are cloned by SQL; their sums are
made by what repairs them. A check is what beginning a call is with its reservation, but for the
flush of its commit. Both take turns, so that whatever else the machine does slows both down.
`value` is the median of the one by that of the other. `group` is a group of 64 memories at a
budget that has room for half of them: its statements and transactions.
"""

import argparse
import asyncio
import statistics
import time
from typing import Any
from uuid import UUID

import psycopg

from service.domain.calls.ledger import CallScope, Lease, Reservation
from service.domain.prism.memory import PrismMemory
from service.domain.prism.schemas.source import parse_source
from service.domain.prism.spec import PrismSpec
from service.domain.prompting.flows import Purpose
from service.domain.spend.budgets import BudgetPeriod
from service.domain.values.errors import BudgetExhausted
from service.domain.values.tenancy import memory_id, session_key
from service.usecases.calls.call_ledger import CallLedger
from storage.calls import call_ledger
from storage.calls.call_ledger import PendingReservation
from storage.engine.database import Database
from storage.log import sessions
from storage.memories import memories
from storage.spend import budgets, sums
from tests.integration.support.statements import statements
from tests.support.harness import Servers
from verification.benchmarks.alternating import alternate

#: Rows of the tenant that has spent little, and of each session of the one that has spent much.
FEW = 300
#: A session's rows: so many memories on so many days.
MEMORIES = 10
GROUP = 64
TOKENS = 100
WARM = 20
_SCHEMA = "class Notes:\n    topics: dict[str, str]\n"
LITTLE, MUCH = UUID(int=0xB0), UUID(int=0xB1)

# Sessions that do not exist: foreign keys are not checked here.
_SPEND = """
INSERT INTO call_sum (session_key, owner_id, tenant_id, day, purpose, model, residual, failed,
    calls, input_tokens, predicted_cached_tokens, reported_cached_tokens, reported_calls,
    cached_tokens, cache_write_tokens, output_tokens, cost_micro_usd, priced_calls)
SELECT CASE s WHEN 0 THEN %(session)s::uuid ELSE md5(%(tenant)s || s)::uuid END,
    CASE WHEN s = 0 AND m = 1 THEN %(memory)s::uuid ELSE md5(%(tenant)s || s || '/' || m)::uuid END,
    %(tenant)s::uuid, (now() AT TIME ZONE 'UTC')::date - d, 'revise', 'm', '', false,
    1, 900, 0, 0, 0, 0, 0, 100, 10, 1
FROM generate_series(%(first)s::bigint, %(last)s::bigint) AS s
CROSS JOIN generate_series(1, %(memories)s::bigint) AS m
CROSS JOIN generate_series(0, %(days)s::integer - 1) AS d
"""
#: Sessions that one statement makes.
SESSIONS_AT_ONCE = 1000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options for what was spent."""
    parser.add_argument("--rows", type=int, default=3_000_000, help="of the tenant that spent much")


def run(seconds: float, *, rows: int) -> dict[str, Any]:
    """Measures; see the module. Takes the time of making the rows besides."""
    with Servers.started() as servers:
        url = servers.new_database()
        return asyncio.run(_run(url, servers.as_superuser(url), seconds, rows))


async def _run(url: str, superuser_url: str, seconds: float, rows: int) -> dict[str, Any]:
    database = Database.connect(url, pool_size=2, name="bench")
    try:
        scopes = {
            tenant: await _prepare(database, superuser_url, tenant) for tenant in (LITTLE, MUCH)
        }
        began = time.monotonic()
        for tenant, many in ((LITTLE, FEW), (MUCH, rows)):
            _fill(superuser_url, scopes[tenant][0], many)
        filled = time.monotonic()
        for tenant in (LITTLE, MUCH):
            async with database.transaction(tenant) as tx:
                await sums.mend(tx, None)
                await sums.mend(tx, scopes[tenant][0].session_key)
        mended = time.monotonic()
        for tenant in (LITTLE, MUCH):
            await _set_budgets(database, scopes[tenant][0])
        jobs = {
            str(tenant.int): (lambda scope=scopes[tenant][0]: _check(database, scope))
            for tenant in (LITTLE, MUCH)
        }
        times = await alternate(jobs, seconds, warm=WARM)
        little, much = (statistics.median(times[str(one.int)]) * 1000 for one in (LITTLE, MUCH))
        group = await _group(database, scopes[MUCH])
    finally:
        await database.close()
    return {
        "value": round(much / little, 3),
        "goal": "<= 1.2",
        "few_ms": round(little, 3),
        "many_ms": round(much, 3),
        "rows": rows,
        "checks": len(times[str(MUCH.int)]),
        "group": group,
        "fill_seconds": round(filled - began, 1),
        "mend_seconds": round(mended - filled, 1),
    }


async def _prepare(database: Database, superuser_url: str, tenant: UUID) -> list[CallScope]:
    """Returns a tenant with a session of many memories; a scope of each."""
    with psycopg.connect(superuser_url, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO tenant (tenant_id, name) VALUES (%s, %s)", (tenant, f"t{tenant.int}")
        )
    key = session_key(tenant, "bench")
    spec = PrismSpec(schema_source=_SCHEMA, chunk_tokens=1, model="openai/slow")
    empty = PrismMemory.create(parse_source(_SCHEMA)).value_json
    scopes = []
    async with database.transaction(tenant) as tx:
        await sessions.create(tx, key, "bench")
        for number in range(GROUP):
            identity = memory_id(key, f"m{number}")
            await memories.create(
                tx,
                session_key=key,
                memory_id=identity,
                name=f"m{number}",
                spec=spec,
                head=0,
                value=empty,
                digest=b"",
            )
            scopes.append(
                CallScope(tenant_id=tenant, session_key=key, memory_id=identity, occasion="bench")
            )
    return scopes


def _fill(superuser_url: str, scope: CallScope, rows: int) -> None:
    with psycopg.connect(superuser_url, autocommit=True) as connection:
        connection.execute("SET session_replication_role = replica")
        connection.execute("SET synchronous_commit = off")
        for first in range(0, rows // FEW, SESSIONS_AT_ONCE):
            connection.execute(
                _SPEND,
                {
                    "session": scope.session_key,
                    "memory": scope.memory_id,
                    "tenant": str(scope.tenant_id),
                    "first": first,
                    "last": min(first + SESSIONS_AT_ONCE, rows // FEW) - 1,
                    "memories": MEMORIES,
                    "days": FEW // MEMORIES,
                },
            )
        connection.execute("VACUUM ANALYZE call_sum")
        connection.execute("CHECKPOINT")


async def _set_budgets(database: Database, scope: CallScope, tokens: int = 10**15) -> None:
    key, owner = scope.session_key, scope.owner_id
    async with database.transaction(scope.tenant_id) as tx:
        for place in (None, (key, key), (key, owner)):
            for period in BudgetPeriod:
                await budgets.put(tx, place, period, limit_tokens=tokens, limit_micro_usd=None)


def _reservation() -> Reservation:
    return Reservation(
        purpose=Purpose.REVISE, model="m", deployment="", tokens=TOKENS, micro_usd=None
    )


async def _check(database: Database, scope: CallScope) -> None:
    """Begins a call, and takes it back."""
    wanted = PendingReservation(scope=scope, key=b"bench", reservation=_reservation())
    async with database.direct(scope.tenant_id) as tx:
        (begun,) = await call_ledger.begin(tx, (wanted,), 60.0)
        # Not undone: with that the connection forgets its plans.
        await tx.pipeline(("DELETE FROM intent", "SET LOCAL synchronous_commit = off"))
        await tx.commit()
    assert isinstance(begun, Lease)


async def _group(database: Database, scopes: list[CallScope]) -> dict[str, int]:
    """Returns a group of calls of as many memories, at a budget that has room for half of them."""
    async with database.transaction(scopes[0].tenant_id) as tx:
        (tenant,) = (
            one
            for one in await budgets.page(tx, named=None, after=("", "", ""), limit=9)
            if not one.owner.session and one.period is BudgetPeriod.TOTAL
        )
        await budgets.put(
            tx,
            None,
            BudgetPeriod.TOTAL,
            limit_tokens=tenant.spent_tokens + GROUP // 2 * TOKENS,
            limit_micro_usd=None,
        )
    ledger = CallLedger(database, lease_seconds=60)
    # What is under way already makes those that come meanwhile a group.
    with statements() as sent:
        begun = await asyncio.gather(
            *(
                ledger.begin(scope, bytes([number]), _reservation())
                for number, scope in enumerate(scopes)
            ),
            return_exceptions=True,
        )
    allowed = sum(isinstance(one, Lease) for one in begun)
    refused = sum(isinstance(one, BudgetExhausted) for one in begun)
    assert allowed + refused == GROUP, begun
    return {
        "allowed": allowed,
        "refused": refused,
        "statements": len(sent),
        "transactions": sum(one.startswith("BEGIN") for one in sent),
    }
