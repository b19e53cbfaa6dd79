"""Measures what calls in progress cost the database: commits a second with CALLS of them.

Their model does not reply, so that nothing happens but that their leases are renewed. `value` is
the commits a second of the database by pg_stat_database, ours among them; `flushes` are those of
the WAL, of the whole server. Half of the calls are of one tenant, the others of `--tenants`.
"""

import argparse
import asyncio
import time
from typing import Any
from uuid import UUID, uuid4

import psycopg

from service.domain.calls.ledger import CallScope
from service.domain.prompting.flows import ModelRequest, Purpose, Segment, SegmentKind
from service.domain.values.tenancy import session_key
from service.llm.providers.plans import CallPlan
from service.llm.providers.transport import Completion
from service.usecases.calls.call_ledger import RENEWED_TOGETHER
from storage.engine.database import Database
from storage.log import sessions
from tests.support import gateways
from tests.support.completions import completion
from tests.support.harness import Servers

CALLS = 1500
TENANTS = 50
LEASE_SECONDS = 10.0
#: Statistics of connections come late: so long after everything has begun.
REST_SECONDS = 5.0


class UnresponsiveModel:
    """Replies on request."""

    def __init__(self) -> None:
        self.asked = 0
        self.go_on = asyncio.Event()

    async def complete(self, ask: ModelRequest, model: str, plan: CallPlan) -> Completion:
        """Returns the same reply each time."""
        self.asked += 1
        await self.go_on.wait()
        return completion("done", model, input_tokens=9, output_tokens=1, cost_micro_usd=0)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options for calls and tenants."""
    parser.add_argument("--calls", type=int, default=CALLS, help="under way at once")
    parser.add_argument("--tenants", type=int, default=TENANTS, help="that have half of them")


def run(seconds: float, *, calls: int, tenants: int) -> dict[str, Any]:
    """Measures; see the module."""
    with Servers.started() as servers:
        url = servers.new_database()
        return asyncio.run(_run(url, servers.as_superuser(url), seconds, calls, tenants))


async def _run(
    url: str, superuser_url: str, seconds: float, calls: int, tenants: int
) -> dict[str, Any]:
    database = Database.connect(url, pool_size=5, name="bench")
    model = UnresponsiveModel()
    gateway = gateways.gateway(model, database, lease_seconds=LEASE_SECONDS)
    scopes = await _prepare(database, superuser_url, tenants)
    making = [
        asyncio.create_task(
            gateway.call(_ask(number), model="openai/silent", scope=_scope(scopes, number))
        )
        for number in range(calls)
    ]
    try:
        while model.asked < calls:
            await asyncio.sleep(0.1)
        await asyncio.sleep(REST_SECONDS)
        with psycopg.connect(superuser_url, autocommit=True) as connection:
            before, began = _counted(connection), time.monotonic()
            await asyncio.sleep(seconds)
            after, took = _counted(connection), time.monotonic() - began
            held = connection.execute(
                "SELECT count(*) FROM intent WHERE lease_until > now()"
            ).fetchone()
        model.go_on.set()
        replies = await asyncio.gather(*making)
    finally:
        for one in making:
            one.cancel()
        await database.close()
    assert held == (calls,), f"every lease holds, not {held}"
    assert len(replies) == calls
    each = {name: (after[name] - before[name]) / took for name in before}
    return {
        "value": round(each["commits"], 2),
        "goal": "<= 20",
        "flushes": round(each["flushes"], 2),
        "wal_kib": round(each["wal_bytes"] / 1024, 1),
        "calls": calls,
        "tenants": tenants + 1,
        "renewed_together": RENEWED_TOGETHER,
    }


async def _prepare(database: Database, superuser_url: str, tenants: int) -> list[CallScope]:
    """Returns a scope of each tenant; the first one has half of the calls."""
    names = [uuid4() for _ in range(tenants + 1)]
    with psycopg.connect(superuser_url, autocommit=True) as connection:
        for one in names:
            connection.execute(
                "INSERT INTO tenant (tenant_id, name) VALUES (%s, %s)", (one, str(one))
            )
    return [await _session(database, one) for one in names]


async def _session(database: Database, tenant: UUID) -> CallScope:
    key = session_key(tenant, "bench")
    async with database.transaction(tenant) as tx:
        await sessions.create(tx, key, "bench")
    return CallScope(tenant_id=tenant, session_key=key, memory_id=None, occasion="bench")


def _scope(scopes: list[CallScope], number: int) -> CallScope:
    others = len(scopes) - 1
    scope = scopes[1 + number // 2 % others] if number % 2 and others else scopes[0]
    return CallScope(
        tenant_id=scope.tenant_id,
        session_key=scope.session_key,
        memory_id=None,
        occasion=f"bench:{number}",
    )


def _ask(number: int) -> ModelRequest:
    return ModelRequest(
        purpose=Purpose.SUMMARIZE,
        template="bench/1",
        segments=(Segment(kind=SegmentKind.CHUNK, text=f"Part {number}.", reusable=False),),
        max_output_tokens=10,
    )


def _counted(connection: psycopg.Connection[Any]) -> dict[str, int]:
    commits = "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()"
    # What it counts of the WAL moved between releases of PostgreSQL.
    flushes = "SELECT wal_sync FROM pg_stat_wal"
    if connection.info.server_version >= 180000:
        flushes = "SELECT sum(fsyncs)::bigint FROM pg_stat_io WHERE object = 'wal'"
    wal = "SELECT wal_bytes::bigint FROM pg_stat_wal"
    found = {}
    for name, query in (("commits", commits), ("flushes", flushes), ("wal_bytes", wal)):
        row = connection.execute(query.encode()).fetchone()
        assert row is not None, "the view has a row"
        found[name] = int(row[0])
    return found
