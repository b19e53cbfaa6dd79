"""Many sessions by SQL: copies of some that the service made, row by row, with all they hold.

Making 100,000 sessions over gRPC takes minutes. Which tables and columns there are the
database says, so that this needs no change when they do.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any, TypeVar
from uuid import UUID

import psycopg
from psycopg import sql

from service.domain.values.tenancy import DEFAULT_TENANT, memory_id, session_key

#: Sessions that are copied by one transaction.
BATCH = 5000

_TABLES = """
SELECT c.relname FROM pg_class c
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = 'session_key' AND NOT a.attisdropped
WHERE c.relnamespace = 'public'::regnamespace AND c.relkind = 'r' AND c.relpersistence = 'p'
ORDER BY c.relname
"""
_COLUMNS = """
SELECT attname FROM pg_attribute
WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped AND attgenerated = ''
ORDER BY attnum
"""
_MAPS = """
CREATE TEMP TABLE IF NOT EXISTS copied (
    source uuid, session_key uuid PRIMARY KEY, tenant_id uuid, name text);
CREATE TEMP TABLE IF NOT EXISTS copied_memory (
    session_key uuid, of_memory uuid, memory_id uuid, PRIMARY KEY (session_key, of_memory));
TRUNCATE copied, copied_memory
"""
#: What a copy has in place of its source's, by column; `copied c` and `copied_memory m`.
_OWN = {
    "session_key": "c.session_key",
    "tenant_id": "c.tenant_id",
    "memory_id": "m.memory_id",
    "owner_id": "coalesce(m.memory_id, c.session_key)",
}
#: The column that names a memory, where a table has one of these.
_NAMES_MEMORY = ("memory_id", "owner_id")


@dataclass(frozen=True, kw_only=True, slots=True)
class Copy:
    """A session by its name and tenant."""

    name: str
    tenant_id: UUID = DEFAULT_TENANT

    @property
    def key(self) -> UUID:
        """Its key, as the service finds it."""
        return session_key(self.tenant_id, self.name)


def clone(
    connection: psycopg.Connection[Any],
    sources: Sequence[str],
    copies: Sequence[Copy],
    *,
    progress: Callable[[int], object] | None = None,
) -> None:
    """Makes copies of the default tenant's sessions `sources`, in turn.

    For a superuser's connection outside of any transaction. Copies have the keys that the
    service would give them. Triggers and foreign keys are off: what is copied fits. Passes
    `progress` how many there are.
    """
    memories = _memories(connection, sources)
    pairs = list(zip(cycle(Copy(name=source).key for source in sources), copies, strict=False))
    done = 0
    for some in _batches(pairs):
        with connection.transaction():
            connection.execute("SET LOCAL session_replication_role = replica")
            _map(connection, some, memories)
            for statement in _statements(connection):
                connection.execute(statement)
        done += len(some)
        if progress is not None:
            progress(done)


_Item = TypeVar("_Item")


def _batches(items: Sequence[_Item]) -> Iterator[Sequence[_Item]]:
    for first in range(0, len(items), BATCH):
        yield items[first : first + BATCH]


def _memories(
    connection: psycopg.Connection[Any], sources: Sequence[str]
) -> Mapping[UUID, Sequence[tuple[UUID, str]]]:
    """Ids and names of the memories of the sources, by session."""
    keys = [Copy(name=source).key for source in sources]
    found: dict[UUID, list[tuple[UUID, str]]] = {key: [] for key in keys}
    rows = connection.execute(
        "SELECT session_key, memory_id, name FROM memory WHERE session_key = ANY(%s)", (keys,)
    )
    for key, identity, name in rows:
        found[key].append((identity, name))
    return found


def _map(
    connection: psycopg.Connection[Any],
    pairs: Sequence[tuple[UUID, Copy]],
    memories: Mapping[UUID, Sequence[tuple[UUID, str]]],
) -> None:
    connection.execute(_MAPS)
    with connection.cursor().copy("COPY copied FROM STDIN") as rows:
        for source, made in pairs:
            rows.write_row((source, made.key, made.tenant_id, made.name))
    with connection.cursor().copy("COPY copied_memory FROM STDIN") as rows:
        for source, made in pairs:
            for identity, name in memories[source]:
                rows.write_row((made.key, identity, memory_id(made.key, name)))
    connection.execute("ANALYZE copied")
    connection.execute("ANALYZE copied_memory")


def _statements(connection: psycopg.Connection[Any]) -> Sequence[sql.Composed]:
    """Returns one for each table that belongs to sessions."""
    return [
        _copying(str(table), [str(name) for (name,) in connection.execute(_COLUMNS, (table,))])
        for (table,) in connection.execute(_TABLES).fetchall()
    ]


def _copying(table: str, columns: Sequence[str]) -> sql.Composed:
    own = dict(_OWN)
    if table == "session":
        own["name"] = "c.name"
    memory = next((name for name in _NAMES_MEMORY if name in columns), None)
    join: sql.Composable = sql.SQL("")
    if memory is not None:
        join = sql.SQL(
            "LEFT JOIN copied_memory m ON m.session_key = c.session_key AND m.of_memory = t.{}"
        ).format(sql.Identifier(memory))
    values = [
        sql.SQL(own[name]) if name in own else sql.SQL("t.{}").format(sql.Identifier(name))
        for name in columns
    ]
    return sql.SQL(
        "INSERT INTO {table} ({columns}) SELECT {values}"
        " FROM copied c JOIN {table} t ON t.session_key = c.source {join}"
    ).format(
        table=sql.Identifier(table),
        columns=sql.SQL(", ").join(map(sql.Identifier, columns)),
        values=sql.SQL(", ").join(values),
        join=join,
    )


_BEHIND = """
WITH picked AS MATERIALIZED (
    SELECT s.session_key, s.head, p.producer_id, p.last_sequence
    FROM session s
    JOIN chunk c ON c.session_key = s.session_key AND c.position = s.head
    JOIN producer p ON p.session_key = s.session_key AND p.producer_id = c.producer_id
    WHERE s.session_key = ANY(%(keys)s)
), produced AS (
    UPDATE producer p SET last_sequence = p.last_sequence + 1
    FROM picked k WHERE p.session_key = k.session_key AND p.producer_id = k.producer_id
), chunks AS (
    INSERT INTO chunk ({columns}) SELECT {values}
    FROM picked k JOIN chunk t ON t.session_key = k.session_key AND t.position = k.head
), heads AS (
    UPDATE session s SET head = k.head + 1, has_unindexed = true
    FROM picked k WHERE s.session_key = k.session_key
)
UPDATE memory m SET has_work = true, ready_at = now() + make_interval(secs => %(seconds)s)
FROM picked k WHERE m.session_key = k.session_key AND m.status = 'active' AND NOT m.has_work
"""
#: What the next chunk has in place of the newest one's.
_NEXT = {
    "position": "k.head + 1",
    "producer_sequence": "k.last_sequence + 1",
    "created_at": "now()",
}


def put_behind(
    connection: psycopg.Connection[Any],
    copies: Sequence[Copy],
    *,
    ready_in_seconds: float = -60.0,
) -> None:
    """Appends to each session what it was appended last, so that its memories have work.

    They are ready so many seconds from now: as a rule they have waited for a minute already.
    No worker gets a wake-up.
    """
    names = [str(name) for (name,) in connection.execute(_COLUMNS, ("chunk",))]
    statement = sql.SQL(_BEHIND).format(
        columns=sql.SQL(", ").join(map(sql.Identifier, names)),
        values=sql.SQL(", ").join(
            sql.SQL(_NEXT[name]) if name in _NEXT else sql.SQL("t.{}").format(sql.Identifier(name))
            for name in names
        ),
    )
    for some in _batches(copies):
        values = {"keys": [one.key for one in some], "seconds": ready_in_seconds}
        connection.execute(statement, values)
