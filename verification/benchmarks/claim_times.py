"""Measures what claiming one item takes, with one tenant, and with many that have work.

This release and the one before take turns. `ratio` is to this release with one tenant.
"""

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any
from uuid import UUID, uuid4

import psycopg
from psycopg import sql

from service.dispatch.turns import Turns
from service.domain.values.tenancy import DEFAULT_TENANT
from storage.memories import queue
from storage.memories.queue import WorkClass
from storage.tables import SWEEPER_ROLE
from tests.support.cloning import Copy, clone, put_behind
from verification.benchmarks.load_stack import one

#: Tenants with work.
TENANTS = (1, 100, 1000)
#: Memories of the first one that are behind.
FIRST = 1000
#: How often claims are timed.
CLAIMS = 300

_ALL_APPLIED = "UPDATE memory SET has_work = false WHERE has_work"
_ALL_INDEXED = "UPDATE session SET has_unindexed = false WHERE has_unindexed"
#: How the release before claimed one item of a worker that has one slot free.
_CLAIM_BEFORE = """
SELECT lane, kind, tenant_id, session_key, item_id FROM take_work(
    %(worker)s, %(lanes_before)s::text[], %(quotas)s::integer[], %(after_before)s::uuid[], 1,
    %(bounded)s::text[], %(bound)s::integer, %(recent_seconds)s, %(scanned)s::integer)
"""


def claim_times(
    connection: psycopg.Connection[Any], url: str, say: Callable[[str], object]
) -> dict[str, Any]:
    """Times claims; each tenant has a copy of the default tenant's session `made`.

    No worker may run. What others have to do is lost.
    """
    connection.execute(_ALL_APPLIED)
    found: dict[str, Any] = {}
    first = 0.0
    for tenants in TENANTS:
        _put_behind(connection, tenants)
        took = _timed(connection, url)
        now, before = (statistics.median(each[CLAIMS // 10 :]) for each in took.values())
        first = first or now
        found[f"tenants_{tenants}"] = {
            "ms": round(now * 1000, 3),
            "ratio": round(now / first, 2),
            "ratio_to_before": round(now / before, 3),
        }
        say(f"claims with {tenants} tenants: {found[f'tenants_{tenants}']}")
    return found


def _put_behind(connection: psycopg.Connection[Any], tenants: int) -> None:
    """Adds tenants with steps to make, until there are so many.

    The first has `FIRST` memories that are behind, each other one has one.
    """
    counts = {number: FIRST if number == 0 else 1 for number in range(tenants)}
    copies = [
        Copy(name=f"claims-{number}", tenant_id=UUID(int=1000 + tenant))
        for tenant, count in counts.items()
        for number in range(count)
    ]
    new = [each for each in copies if not _is_there(connection, each)]
    with connection.cursor() as cursor:
        cursor.executemany(
            "INSERT INTO tenant (tenant_id, name) VALUES (%s, %s) ON CONFLICT DO NOTHING",
            [(each.tenant_id, str(each.tenant_id)) for each in new],
        )
    clone(connection, ["made"], new)
    put_behind(connection, new)
    connection.execute(_ALL_INDEXED)
    connection.execute("VACUUM ANALYZE")


def _is_there(connection: psycopg.Connection[Any], copy: Copy) -> bool:
    return bool(one(connection, "SELECT count(*) FROM session WHERE session_key = %s", (copy.key,)))


def _timed(connection: psycopg.Connection[Any], url: str) -> Mapping[str, list[float]]:
    """Times claims of one item, each of the same queue: they are undone."""
    before = ("wanted", *(each.value for each in WorkClass))
    values = {
        **queue.take_values(uuid4(), done=(), scan=Turns(1).scan(1, ())),
        "lanes_before": list(before),
        "quotas": [1] * len(before),
        "after_before": [DEFAULT_TENANT] * len(before),
    }
    statements = {"now": queue.TAKE, "before": _CLAIM_BEFORE}
    took: dict[str, list[float]] = {name: [] for name in statements}
    role = sql.SQL("SET LOCAL ROLE {}").format(sql.Identifier(SWEEPER_ROLE))
    # As after the first claims of all.
    connection.execute("TRUNCATE tenant_turn")
    connection.execute(
        "INSERT INTO tenant_turn SELECT DISTINCT tenant_id, 0, 1, 0 FROM memory WHERE has_work"
    )
    connection.execute("VACUUM ANALYZE tenant_turn")
    with psycopg.connect(url, autocommit=True, options="-c role=palimpsest_app") as claiming:
        for _ in range(CLAIMS):
            for name, statement in statements.items():
                with claiming.transaction(force_rollback=True):
                    claiming.execute(role)
                    began = time.perf_counter()
                    claiming.execute(statement, values, prepare=True)
                    took[name].append(time.perf_counter() - began)
    return took
