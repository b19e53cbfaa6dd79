"""Tables of erasures, and of the tenants' keys that sign and recognize them."""

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    ForeignKeyConstraint,
    Index,
    LargeBinary,
    PrimaryKeyConstraint,
    Table,
    Text,
    Uuid,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

from storage.tables.common import created, ids, metadata

erasure = Table(
    "erasure",
    metadata,
    # It outlives its target, so it has no foreign key to it, and is never removed.
    *ids("tenant_id", "erasure_id"),
    Column("kind", Text, nullable=False),
    # NULL of a tenant.
    Column("target_session", Uuid),
    # The session, a memory that was deleted alone, or a redaction of chunks.
    Column("target_item", Uuid),
    # What else names the target; no text.
    Column("detail", JSONB, nullable=False, server_default=text("'{}'")),
    Column("principal", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("requested_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    Column("completed_at", DateTime(timezone=True)),
    Column("journalled_at", DateTime(timezone=True)),
    # Whether the journal repeated it in a restored database.
    Column("is_replayed", Boolean, nullable=False, server_default=text("false")),
    # Rows by table that the removal's batches have removed.
    Column("counts", JSONB, nullable=False, server_default=text("'{}'")),
    # Keyed digests of removed texts, one after another.
    Column("digests", LargeBinary, nullable=False, server_default=text("''")),
    Column("digests_omitted", BigInteger, nullable=False, server_default=text("0")),
    PrimaryKeyConstraint("tenant_id", "erasure_id", name="erasure_pkey"),
    ForeignKeyConstraint(["tenant_id"], ["tenant.tenant_id"], name="erasure_tenant_fkey"),
    CheckConstraint("kind IN ('session', 'memory', 'chunks', 'tenant')", name="erasure_kind"),
    CheckConstraint("(kind = 'tenant') = (target_session IS NULL)", name="erasure_target"),
    Index("erasure_by_time", "tenant_id", "requested_at", "erasure_id"),
    Index(
        "erasure_open",
        "target_session",
        "target_item",
        postgresql_where=text("completed_at IS NULL"),
    ),
    # What the system tenant lists.
    Index(
        "erasure_tenants_by_time",
        "requested_at",
        "erasure_id",
        postgresql_where=text("kind = 'tenant'"),
    ),
    # What workers look for.
    Index(
        "erasure_of_tenants",
        "tenant_id",
        postgresql_where=text("kind = 'tenant' AND completed_at IS NULL"),
    ),
    Index(
        "erasure_unjournalled",
        "tenant_id",
        "erasure_id",
        postgresql_where=text("journalled_at IS NULL"),
    ),
)

tenant_key = Table(
    "tenant_key",
    metadata,
    # Made when they are needed first, and never changed: old receipts stay valid.
    Column("tenant_id", Uuid, nullable=False),
    # The seed of an Ed25519 key.
    Column("signing_key", LargeBinary, nullable=False),
    Column("digest_key", LargeBinary, nullable=False),
    created(),
    PrimaryKeyConstraint("tenant_id", name="tenant_key_pkey"),
    ForeignKeyConstraint(["tenant_id"], ["tenant.tenant_id"], name="tenant_key_tenant_fkey"),
    CheckConstraint("octet_length(signing_key) = 32", name="tenant_key_signing"),
    CheckConstraint("octet_length(digest_key) = 32", name="tenant_key_digest"),
)
