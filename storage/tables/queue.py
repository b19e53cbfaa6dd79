"""What workers have in hand, and what somebody waits for: unlogged, so that it costs no flush.

A crash of the server empties these tables, and workers fill them again.
"""

from sqlalchemy import Column, DateTime, Index, PrimaryKeyConstraint, Table, Text, Uuid, func

from storage.tables.common import metadata


def _now(name: str) -> Column[object]:
    return Column(
        name, DateTime(timezone=True), nullable=False, server_default=func.clock_timestamp()
    )


worker = Table(
    "worker",
    metadata,
    Column("worker_id", Uuid, primary_key=True),
    # When it last said that it lives.
    _now("beat_at"),
    prefixes=["UNLOGGED"],
)


claim = Table(
    "claim",
    metadata,
    Column("session_key", Uuid, nullable=False),
    Column("item_id", Uuid, nullable=False),
    # One of service/domain/values/work_items.py.
    Column("kind", Text, nullable=False),
    Column("worker_id", Uuid, nullable=False),
    _now("claimed_at"),
    PrimaryKeyConstraint("session_key", "item_id", "kind", name="claim_pkey"),
    prefixes=["UNLOGGED"],
)


wanted = Table(
    "wanted",
    metadata,
    Column("session_key", Uuid, nullable=False),
    Column("memory_id", Uuid, nullable=False),
    Column("tenant_id", Uuid, nullable=False),
    # Since when somebody waits for it.
    _now("wanted_at"),
    PrimaryKeyConstraint("session_key", "memory_id", name="wanted_pkey"),
    Index("wanted_turns", "tenant_id", "wanted_at"),
    prefixes=["UNLOGGED"],
)
