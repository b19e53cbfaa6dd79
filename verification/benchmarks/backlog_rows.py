"""The database that the benchmark `backlog` has: many sessions, and statistics of before."""

from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

import psycopg
from psycopg import sql

from service.domain.values.tenancy import DEFAULT_TENANT
from tests.support.cloning import Copy, clone, put_behind
from verification.benchmarks.load_stack import count_behind, one

#: A tenant that no client reaches over gRPC; its sessions are copies.
OTHER_TENANT = UUID("9d5f4c6e-7a43-5d0b-8f0e-2f4f7d1a0002")

_TABLES = """
SELECT c.oid::regclass::text FROM pg_class c
WHERE c.relkind = 'r' AND c.relnamespace = 'public'::regnamespace
"""
#: Nothing analyzes the tables any more; they are vacuumed as ever.
_NO_ANALYZE = """
ALTER TABLE {} SET (
    autovacuum_analyze_threshold = 2147483647, autovacuum_analyze_scale_factor = 100)
"""


def freeze_statistics(connection: psycopg.Connection[Any]) -> None:
    """Analyzes all tables as they are, for the last time."""
    for (table,) in connection.execute(_TABLES).fetchall():
        connection.execute(sql.SQL(_NO_ANALYZE).format(sql.SQL(table)))
    connection.execute("VACUUM ANALYZE")


def copy_sessions(
    connection: psycopg.Connection[Any],
    sources: Sequence[str],
    count: int,
    say: Callable[[str], object],
    *,
    name: str,
    tenant_id: UUID = DEFAULT_TENANT,
) -> Sequence[Copy]:
    """Makes so many copies of sessions of the default tenant, for that tenant or another."""
    if tenant_id != DEFAULT_TENANT:
        connection.execute(
            "INSERT INTO tenant (tenant_id, name) VALUES (%s, 'other') ON CONFLICT DO NOTHING",
            (tenant_id,),
        )
    copies = [Copy(name=f"{name}-{number}", tenant_id=tenant_id) for number in range(count)]
    clone(
        connection, sources, copies, progress=lambda done: say(f"{done} of {count} sessions copied")
    )
    return copies


class Backlog:
    """Copies of which some are behind. No wake-up is sent: workers find them by their own look."""

    def __init__(self, connection: psycopg.Connection[Any], copies: Sequence[Copy]) -> None:
        self._connection = connection
        self.copies = copies
        #: Where the next ones are taken from; those that were taken first are applied by then.
        self._next = 0

    def add(self, count: int) -> Sequence[Copy]:
        """Puts so many more behind."""
        first, self._next = self._next, (self._next + count) % len(self.copies)
        some = [self.copies[(first + number) % len(self.copies)] for number in range(count)]
        put_behind(self._connection, some)
        return some

    def fill(self, count: int) -> int:
        """Puts as many more behind as are missing to so many; how many are now."""
        # Those at hand may be behind already, and then count once.
        for _ in range(3):
            missing = count - count_behind(self._connection)
            if missing <= 0:
                break
            self.add(min(missing, len(self.copies)))
        return count_behind(self._connection)


_STEPS = """
SELECT count(*), coalesce(extract(epoch FROM max(created_at) - min(created_at)), 0)::float8
FROM revision WHERE created_at >= %(since)s AND to_position > from_position
"""
#: As long as they are few these are found by their keys.
_STEPS_OF = f"{_STEPS} AND session_key = ANY(%(keys)s)"
_LEFT = """
SELECT count(*) FROM unnest(%s::uuid[]) AS wanted (key)
CROSS JOIN LATERAL (
    SELECT m.applied_position < s.head AS is_behind FROM memory m JOIN session s USING (session_key)
    WHERE m.session_key = wanted.key OFFSET 0
) AS found
WHERE is_behind
"""
_BY_TENANT = """
SELECT tenant_id, count(*) FROM revision
WHERE created_at >= %s AND to_position > from_position GROUP BY tenant_id
"""


def clock(connection: psycopg.Connection[Any]) -> Any:
    """Returns the database's time."""
    return one(connection, "SELECT clock_timestamp()")


def steps_since(
    connection: psycopg.Connection[Any], since: Any, copies: Sequence[Copy] | None = None
) -> tuple[int, float]:
    """Returns how many steps were committed since then, and seconds between the first and the last.

    Of a few sessions, or of all.
    """
    if copies is None:
        row = connection.execute(_STEPS, {"since": since}).fetchone()
    else:
        keys = [copy.key for copy in copies]
        row = connection.execute(_STEPS_OF, {"since": since, "keys": keys}).fetchone()
    assert row is not None, "an aggregate has a row"
    return int(row[0]), float(row[1])


def count_unindexed(connection: psycopg.Connection[Any]) -> int:
    """Returns how many sessions have chunks that are to be indexed."""
    return int(one(connection, "SELECT count(*) FROM session WHERE has_unindexed"))


def are_applied(connection: psycopg.Connection[Any], copies: Sequence[Copy]) -> bool:
    """Returns whether the memories of some sessions have applied their whole logs."""
    return int(one(connection, _LEFT, ([copy.key for copy in copies],))) == 0


def steps_by_tenant(connection: psycopg.Connection[Any], since: Any) -> dict[UUID, int]:
    """Returns how many steps were committed since then, by tenant."""
    return dict(connection.execute(_BY_TENANT, (since,)).fetchall())
