"""Tables of PRISM memories: amendments, and the states between them."""

from sqlalchemy import (
    Boolean,
    CheckConstraint,
    Column,
    Index,
    Integer,
    PrimaryKeyConstraint,
    Table,
    Text,
    text,
)

from storage.tables.common import count, ids, metadata, of_revision

amendment = Table(
    "amendment",
    metadata,
    *ids("session_key", "memory_id", "tenant_id"),
    count("revision"),
    Column("ordinal", Integer, nullable=False),
    # RFC 9535 normalized path.
    Column("path", Text, nullable=False),
    Column("op", Text, nullable=False),
    # Canonical JSON, as text, since jsonb would reorder keys and rewrite numbers.
    Column("value", Text, nullable=False),
    Column("op_corrected", Boolean, nullable=False),
    PrimaryKeyConstraint("session_key", "memory_id", "revision", "ordinal", name="amendment_pkey"),
    of_revision("amendment_revision_fkey"),
    CheckConstraint("op IN ('add', 'update', 'remove')", name="amendment_op"),
    # The beginning of the path, in the order of its bytes: a range finds amendments at or below a
    # path. A whole path may be longer than an index entry.
    Index(
        "amendment_by_path",
        "session_key",
        "memory_id",
        text("left(path, 500)"),
        "revision",
        "ordinal",
    ),
)


rejection = Table(
    "rejection",
    metadata,
    *ids("session_key", "memory_id", "tenant_id"),
    count("revision"),
    Column("ordinal", Integer, nullable=False),
    Column("proposal", Text, nullable=False),
    Column("reason", Text, nullable=False),
    PrimaryKeyConstraint("session_key", "memory_id", "revision", "ordinal", name="rejection_pkey"),
    of_revision("rejection_revision_fkey"),
)


prism_base = Table(
    "prism_base",
    metadata,
    # A base that a fold (or the creation) wrote. It is kept, since it is also a snapshot.
    *ids("session_key", "memory_id", "tenant_id"),
    count("revision"),
    Column("value", Text, nullable=False),
    PrimaryKeyConstraint("session_key", "memory_id", "revision", name="prism_base_pkey"),
    of_revision("prism_base_revision_fkey"),
)


prism_snapshot = Table(
    "prism_snapshot",
    metadata,
    # A state between two bases, so that any revision is read from a close one. Prompts do not use
    # it.
    *ids("session_key", "memory_id", "tenant_id"),
    count("revision"),
    Column("value", Text, nullable=False),
    PrimaryKeyConstraint("session_key", "memory_id", "revision", name="prism_snapshot_pkey"),
    of_revision("prism_snapshot_revision_fkey"),
)


prism_value = Table(
    "prism_value",
    metadata,
    # The newest state, which is read as one row.
    *ids("session_key", "memory_id", "tenant_id"),
    count("revision"),
    Column("value", Text, nullable=False),
    # Amendments since the newest base or snapshot.
    Column("unsaved_amendments", Integer, nullable=False, server_default=text("0")),
    PrimaryKeyConstraint("session_key", "memory_id", name="prism_value_pkey"),
    of_revision("prism_value_revision_fkey"),
)
