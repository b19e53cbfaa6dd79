"""Measures the lag of memories over all tenants. Reads positions and times only."""

from dataclasses import dataclass

from storage.engine.database import Database

#: How long the measurement may take, in seconds; else there are no figures.
MEASURE_SECONDS = 10


@dataclass(frozen=True, kw_only=True, slots=True)
class Lag:
    """The memories of a deployment."""

    #: Memories that gave up.
    stalled: int
    #: Memories that may make no call now.
    held: int
    #: Active memories with unread chunks, held ones included.
    behind: int
    #: Unread chunks of these: the sum, the 95th percentile, and the maximum.
    sum_chunks: int
    p95_chunks: float
    max_chunks: int
    #: Age of a memory's oldest unread chunk: the 95th percentile, and the maximum.
    p95_seconds: float
    max_seconds: float


# By the partial index on memories with work, and by keys: its cost grows only with what there is to
# do.
_LAG = """
WITH behind AS (
    SELECT (m.held_reason IS NOT NULL OR m.waiting_model IS NOT NULL)
            AND m.ready_at > now() AS is_held,
        least(s.head, coalesce(m.seal_position, s.head)) - m.applied_position AS chunks,
        extract(epoch FROM now() - c.created_at) AS seconds
    FROM memory m
    JOIN session s ON s.session_key = m.session_key
    LEFT JOIN chunk c ON c.session_key = m.session_key AND c.position = m.applied_position + 1
    WHERE m.has_work AND m.status = 'active' AND m.ready_at > '-infinity' AND NOT m.resting
)
SELECT (SELECT count(*) FROM dead_letter WHERE resolution IS NULL) AS stalled,
    count(*) FILTER (WHERE is_held) AS held,
    count(*) FILTER (WHERE chunks > 0) AS behind,
    coalesce(sum(chunks) FILTER (WHERE chunks > 0), 0)::bigint AS sum_chunks,
    coalesce(percentile_cont(0.95) WITHIN GROUP (ORDER BY chunks)
        FILTER (WHERE chunks > 0), 0)::float8 AS p95_chunks,
    greatest(coalesce(max(chunks), 0), 0) AS max_chunks,
    coalesce(percentile_cont(0.95) WITHIN GROUP (ORDER BY seconds)
        FILTER (WHERE chunks > 0), 0)::float8 AS p95_seconds,
    coalesce(max(seconds) FILTER (WHERE chunks > 0), 0)::float8 AS max_seconds
FROM behind
"""


async def read_lag(database: Database) -> Lag:
    """Returns the lag of all tenants at one moment. Raises StorageError."""
    async with database.sweeping(name="measure") as tx:
        await tx.execute(
            f"SET LOCAL app.measuring = 'on'; SET LOCAL statement_timeout = '{MEASURE_SECONDS}s'",
            prepare=None,
        )
        row = (await tx.fetch(_LAG, prepare=None))[0]
        return Lag(**row._asdict())
