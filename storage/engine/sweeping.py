"""Removes old rows of all tenants, in batches."""

from storage.engine.database import Database

#: Rows that one transaction removes.
SWEPT_ROWS = 10_000


async def sweep(database: Database, table: str, *, expired: str, by: str, lock: int) -> None:
    """Removes the rows of a table for which the SQL condition `expired` is true.

    The oldest by the column `by` go first. One sweep at a time, by the advisory `lock`: two would
    choose the same rows. It is requested twice, since only a statement that begins after it sees
    all that the sweep before has removed. Raises StorageError.
    """
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
