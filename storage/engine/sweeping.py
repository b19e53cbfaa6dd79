"""Removes old rows of all tenants, in batches."""

from storage.engine.database import Database

#: Rows that one transaction removes.
SWEPT_ROWS = 10_000

#: Tables with the condition of rows that are removed, the column by which the oldest go first, and
#: the key of an advisory lock: two sweeps would choose the same rows.
_EXPIRING = (
    ("trace_context", "created_at < now() - interval '1 day'", "created_at", 0x70616C74),
    ("request", "expires_at < now()", "expires_at", 0x70616C72),
    ("operation", "created_at < now() - interval '30 days'", "created_at", 0x70616C6F),
)


async def sweep(database: Database) -> None:
    """Removes expired trace contexts, requests and operations, unless another worker does so.

    Raises StorageError.
    """
    for table, expired, by, lock in _EXPIRING:
        # Requested twice, since only a statement that begins after it sees all that the sweep
        # before has removed.
        alone = f"SELECT pg_try_advisory_xact_lock({lock})"
        swept = f"""
WITH swept AS (
    DELETE FROM {table} WHERE ctid = ANY(ARRAY(
        SELECT ctid FROM {table} WHERE {expired} AND ({alone})
        ORDER BY {by} LIMIT %(rows)s))
    RETURNING 1)
SELECT count(*) FROM swept
"""  # noqa: S608 - all of it is ours
        removed = SWEPT_ROWS
        while removed == SWEPT_ROWS:
            _, ((removed,),) = await database.swept((alone, swept), {"rows": SWEPT_ROWS})
