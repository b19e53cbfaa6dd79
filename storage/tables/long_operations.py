"""Long work that clients requested."""

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    DateTime,
    ForeignKeyConstraint,
    Index,
    PrimaryKeyConstraint,
    Table,
    Text,
    Uuid,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

from storage.tables.common import created, metadata

operation = Table(
    "operation",
    metadata,
    Column("session_key", Uuid, nullable=False),
    # Of a schema, its draft.
    Column("operation_id", Uuid, nullable=False),
    Column("tenant_id", Uuid, nullable=False),
    Column("kind", Text, nullable=False),
    # What it changes or builds; NULL and empty of a schema.
    Column("memory_id", Uuid),
    Column("memory_name", Text, nullable=False),
    # Everything up to here is to be read; 0 of a schema.
    Column("goal", BigInteger, nullable=False),
    # How it ended, as it was first reported; NULL before.
    Column("state", Text),
    # Why it failed: reason, message and metadata.
    Column("error", JSONB),
    Column("ended_at", DateTime(timezone=True)),
    created(),
    PrimaryKeyConstraint("session_key", "operation_id", name="operation_pkey"),
    ForeignKeyConstraint(
        ["session_key", "tenant_id"],
        ["session.session_key", "session.tenant_id"],
        name="operation_session_fkey",
        ondelete="CASCADE",
    ),
    CheckConstraint(
        "kind IN ('rebuild', 'consolidation', 'schema', 'seal')", name="operation_kind"
    ),
    CheckConstraint("state IN ('done', 'failed', 'cancelled')", name="operation_state"),
    CheckConstraint("(kind = 'schema') = (memory_id IS NULL)", name="operation_memory"),
    CheckConstraint("(state IS NULL) = (ended_at IS NULL)", name="operation_end"),
    CheckConstraint("(state = 'failed') IS TRUE = (error IS NOT NULL)", name="operation_error"),
    # A memory is consolidated by one operation at a time.
    Index(
        "operation_consolidation",
        "session_key",
        "memory_id",
        unique=True,
        postgresql_where=text("kind = 'consolidation' AND state IS NULL"),
    ),
    # A tree is sealed by one operation at a time.
    Index(
        "operation_seal",
        "session_key",
        "memory_id",
        unique=True,
        postgresql_where=text("kind = 'seal' AND state IS NULL"),
    ),
    Index("operation_by_session", "session_key", "created_at", "operation_id"),
    Index("operation_by_tenant", "tenant_id", "created_at", "operation_id"),
    Index("operation_age", "created_at"),
)
