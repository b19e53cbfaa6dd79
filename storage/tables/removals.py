"""What is deleted and still has rows: workers remove them, batch by batch."""

from sqlalchemy import Column, DateTime, Index, PrimaryKeyConstraint, Table, Uuid, func, text

from storage.tables.common import created, metadata, of_session

removal = Table(
    "removal",
    metadata,
    Column("session_key", Uuid, nullable=False),
    # The session's own key, or the memory that is deleted alone.
    Column("item_id", Uuid, nullable=False),
    Column("tenant_id", Uuid, nullable=False),
    created(),
    Column("ready_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    PrimaryKeyConstraint("session_key", "item_id", name="removal_pkey"),
    of_session("removal_session_fkey"),
    Index(
        "removal_turns",
        "tenant_id",
        "ready_at",
        # It is so of each row, and keeps this index to the queue: see take_work.
        postgresql_where=text("ready_at > '-infinity'"),
    ),
)
