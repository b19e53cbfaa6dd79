"""Measures how much storage data takes: of a session, of a tenant, and by table.

Cheaply: rows are counted up to a limit, and the rest is estimated.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from service.domain.operations.storage import StorageKind, StoredSize
from storage.engine.database import Row, Transaction
from storage.tables import metadata

#: Rows of a table that are counted and measured for a session; of more the rest is estimated.
COUNTED_ROWS = 10_000
#: Pages of a table that are read for a tenant; of a larger table its rows are estimated by them.
SAMPLED_PAGES = 512
_PAGE_BYTES = 8192
#: Bytes of a row besides its values: its header, and the pointer to it.
_ROW_BYTES = 28

_KIND = StorageKind
_KNOWN: Mapping[str, StorageKind] = {
    "chunk": _KIND.LOG,
    "request": _KIND.LOG,
    "memory": _KIND.MEMORIES,
    "prism_value": _KIND.MEMORIES,
    "tree_node": _KIND.MEMORIES,
    "state_vector": _KIND.MEMORIES,
    "revision": _KIND.HISTORY,
    "amendment": _KIND.HISTORY,
    "rejection": _KIND.HISTORY,
    "prism_base": _KIND.HISTORY,
    "prism_snapshot": _KIND.HISTORY,
    "state_levels": _KIND.HISTORY,
    "chunk_word": _KIND.INDEX,
    "chunk_vector": _KIND.INDEX,
    "posting_block": _KIND.INDEX,
    "posting_list": _KIND.INDEX,
    "memory_entry": _KIND.INDEX,
    "call": _KIND.LEDGER,
    "call_sum": _KIND.LEDGER,
    "answer": _KIND.ANSWERS,
    "answer_text": _KIND.ANSWERS,
    "answer_rating": _KIND.ANSWERS,
    "trajectory_event": _KIND.ANSWERS,
}
#: What each table of sessions holds. Unlogged ones are no data.
TABLES: Mapping[str, StorageKind] = {
    name: _KNOWN.get(name, _KIND.OTHER)
    for name, table in metadata.tables.items()
    if "session_key" in table.c and "UNLOGGED" not in table._prefixes
}


@dataclass(frozen=True, kw_only=True, slots=True)
class TableSize:
    """The size of a table in the whole deployment."""

    table: str
    #: With its indexes, and room that is free within it.
    bytes: int


def _row_size(table: str) -> str:
    # Values that are stored apart count with their compressed size, and are not read for it.
    columns = metadata.tables[table].columns.keys()
    sizes = " + ".join(f"coalesce(pg_column_size({name}), 0)" for name in columns)
    return f"{sizes} + {_ROW_BYTES}"


def _measured(table: str) -> str:
    return f"""
SELECT count(*) AS rows, coalesce(sum(bytes), 0)::bigint AS bytes FROM (
    SELECT {_row_size(table)} AS bytes FROM {table}
    WHERE session_key = %(session)s LIMIT {COUNTED_ROWS}
) AS counted"""  # noqa: S608 - names from above


_MEASURED = tuple(_measured(table) for table in TABLES)


async def session_sizes(tx: Transaction, session_key: UUID) -> Mapping[StorageKind, StoredSize]:
    """Returns the sizes of a session's rows, without indexes."""
    values = {"session": session_key}
    counted = [rows[0] for rows in await tx.pipeline(_MEASURED, values, prepare=False)]
    large = [name for name, one in zip(TABLES, counted, strict=True) if one.rows == COUNTED_ROWS]
    explained = [
        f"EXPLAIN (FORMAT JSON) SELECT FROM {name} WHERE session_key = %(session)s"
        for name in large
    ]
    expected = dict(zip(large, await _plans(tx, explained, values), strict=True))
    found: dict[StorageKind, StoredSize] = defaultdict(StoredSize)
    for (name, kind), one in zip(TABLES.items(), counted, strict=True):
        rows = max(one.rows, expected.get(name, 0))
        size = one.bytes * rows // max(one.rows, 1)
        found[kind] += StoredSize(rows=rows, bytes=size, is_estimated=name in large)
    return found


_RELATIONS = """
SELECT relname::text AS name, pg_relation_size(oid) / %(page)s AS pages,
    pg_table_size(oid) AS bytes, pg_total_relation_size(oid) AS with_indexes
FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relname = ANY(%(tables)s::text[])
"""


def _sampled(table: str) -> str:
    # The same pages each time, as long as there are as many.
    return f"""
SELECT count(*) AS rows, coalesce(sum({_row_size(table)}), 0)::bigint AS bytes
FROM {table} TABLESAMPLE SYSTEM (%({table})s) REPEATABLE (1)"""  # noqa: S608 - names from above


async def tenant_sizes(tx: Transaction) -> Mapping[StorageKind, StoredSize]:
    """Returns the sizes of a tenant's rows, with their part of the indexes.

    Pages are sampled, and row-level security shows the tenant's rows of them. The statistics of
    the planner would say nothing of a table until it is analyzed.
    """
    named = {"tables": list(TABLES), "page": _PAGE_BYTES}
    relations = await tx.fetch(_RELATIONS, named, prepare=False)
    sizes = {row.name: row for row in relations if row.pages}
    shares = {name: min(SAMPLED_PAGES / row.pages, 1.0) for name, row in sizes.items()}
    statements = [_sampled(name) for name in sizes]
    percents = {name: 100 * share for name, share in shares.items()}
    sampled = await tx.pipeline(statements, percents, prepare=False) if statements else []
    found = {kind: StoredSize() for kind in StorageKind}
    for (name, size), (counted,) in zip(sizes.items(), sampled, strict=True):
        part = min(counted.bytes / shares[name] / size.bytes, 1.0)
        found[TABLES[name]] += StoredSize(
            rows=round(counted.rows / shares[name]),
            bytes=round(size.with_indexes * part),
            is_estimated=shares[name] < 1.0,
        )
    return found


async def _plans(
    tx: Transaction, statements: Sequence[str], values: Mapping[str, object]
) -> list[int]:
    """Returns how many rows the planner expects of each."""
    if not statements:
        return []
    found: list[list[Row]] = await tx.pipeline(statements, values, prepare=False)
    return [int(rows[0][0][0]["Plan"]["Plan Rows"]) for rows in found]


_LARGEST = """
SELECT relname::text AS name, pg_total_relation_size(oid) AS bytes FROM pg_class
WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p')
ORDER BY 2 DESC, 1 LIMIT %(limit)s
"""
_TOTAL = "SELECT pg_database_size(current_database())"


async def largest_tables(tx: Transaction, limit: int) -> tuple[int, Sequence[TableSize]]:
    """Returns the size of the whole database, and its largest tables."""
    ((total,),) = await tx.fetch(_TOTAL, prepare=None)
    rows = await tx.fetch(_LARGEST, {"limit": limit}, prepare=None)
    return total, [TableSize(table=row.name, bytes=row.bytes) for row in rows]
