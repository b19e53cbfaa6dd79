"""The deployment, tenants, sessions, and their logs."""

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    PrimaryKeyConstraint,
    Table,
    Text,
    UniqueConstraint,
    Uuid,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

from storage.tables.common import count, created, metadata

deployment = Table(
    "deployment",
    metadata,
    # One row: what all processes on this database share.
    Column("singleton", Boolean, primary_key=True, server_default=text("true")),
    Column("token_key", LargeBinary, nullable=False),
    Column("marker_key", LargeBinary, nullable=False),
    created(),
    CheckConstraint("singleton", name="deployment_singleton"),
)


tenant = Table(
    "tenant",
    metadata,
    Column("tenant_id", Uuid, primary_key=True),
    Column("name", Text, nullable=False),
    created(),
)


session = Table(
    "session",
    metadata,
    # uuid5(tenant, name), so a name is unique without a look-up.
    Column("session_key", Uuid, primary_key=True),
    Column("tenant_id", Uuid, nullable=False),
    Column("name", Text, nullable=False),
    # Position of the newest chunk; moves under this row's lock only.
    Column("head", BigInteger, nullable=False, server_default=text("0")),
    Column("content_bytes", BigInteger, nullable=False, server_default=text("0")),
    # Rises when a name is used again after erasure, so that old tokens are refused.
    Column("incarnation", Integer, nullable=False, server_default=text("1")),
    created(),
    ForeignKeyConstraint(["tenant_id"], ["tenant.tenant_id"], name="session_tenant_fkey"),
    CheckConstraint("head >= 0", name="session_head"),
    Index("session_by_name", "tenant_id", "name"),
)


producer = Table(
    "producer",
    metadata,
    Column("session_key", Uuid, nullable=False),
    Column("producer_id", Text, nullable=False),
    Column("tenant_id", Uuid, nullable=False),
    count("epoch"),
    count("last_sequence"),
    PrimaryKeyConstraint("session_key", "producer_id", name="producer_pkey"),
    ForeignKeyConstraint(["session_key"], ["session.session_key"], name="producer_session_fkey"),
)


chunk = Table(
    "chunk",
    metadata,
    Column("session_key", Uuid, nullable=False),
    count("position"),
    Column("tenant_id", Uuid, nullable=False),
    Column("producer_id", Text, nullable=False),
    count("producer_sequence"),
    Column("kind", Text, nullable=False),
    Column("role", Text, nullable=False),
    Column("text", Text, nullable=False),
    Column("observation", Text, nullable=False),
    Column("thought", Text, nullable=False),
    Column("action", Text, nullable=False),
    Column("metadata", JSONB),
    Column("digest", LargeBinary, nullable=False),
    created(),
    PrimaryKeyConstraint("session_key", "position", name="chunk_pkey"),
    # A producer's sequence number is stored once, for ever.
    UniqueConstraint("session_key", "producer_id", "producer_sequence", name="chunk_once"),
    ForeignKeyConstraint(
        ["session_key", "producer_id"],
        ["producer.session_key", "producer.producer_id"],
        name="chunk_producer_fkey",
    ),
    CheckConstraint("position >= 1", name="chunk_position"),
    CheckConstraint("producer_sequence >= 1", name="chunk_sequence"),
    CheckConstraint("kind IN ('text', 'message', 'step')", name="chunk_kind"),
)
