"""Which span of which trace what waits belongs to: unlogged, for nothing but links needs it."""

from sqlalchemy import (
    CheckConstraint,
    Column,
    ForeignKeyConstraint,
    Index,
    LargeBinary,
    PrimaryKeyConstraint,
    SmallInteger,
    Table,
    Uuid,
)

from storage.tables.common import count, created, metadata

trace_context = Table(
    "trace_context",
    metadata,
    Column("session_key", Uuid, nullable=False),
    # The session itself of chunks that were appended, a memory of what was committed to it, or
    # what is to be made: an answer.
    Column("owner_id", Uuid, nullable=False),
    # Positions in the log; of a commit both are its revision, of what is to be made both are 0.
    count("from_position"),
    count("to_position"),
    Column("tenant_id", Uuid, nullable=False),
    # As W3C Trace Context has them.
    Column("trace_id", LargeBinary, nullable=False),
    Column("span_id", LargeBinary, nullable=False),
    Column("flags", SmallInteger, nullable=False),
    created(),
    PrimaryKeyConstraint("session_key", "owner_id", "to_position", name="trace_context_pkey"),
    # It goes with its session.
    ForeignKeyConstraint(
        ["session_key", "tenant_id"],
        ["session.session_key", "session.tenant_id"],
        name="trace_context_session_fkey",
        ondelete="CASCADE",
    ),
    CheckConstraint("octet_length(trace_id) = 16", name="trace_context_trace"),
    CheckConstraint("octet_length(span_id) = 8", name="trace_context_span"),
    CheckConstraint(
        "0 <= from_position AND from_position <= to_position", name="trace_context_positions"
    ),
    # For sweeps, which look at the oldest of all tenants.
    Index("trace_context_age", "created_at"),
    prefixes=["UNLOGGED"],
)
