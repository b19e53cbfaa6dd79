"""Tables of keys, of the audit log and of the trust in sources."""

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    DateTime,
    ForeignKeyConstraint,
    Index,
    LargeBinary,
    PrimaryKeyConstraint,
    Table,
    Text,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB

from storage.tables.common import created, ids, metadata


def _of_tenant(name: str) -> ForeignKeyConstraint:
    return ForeignKeyConstraint(["tenant_id"], ["tenant.tenant_id"], name=name)


api_key = Table(
    "api_key",
    metadata,
    *ids("tenant_id"),
    # Unique over all tenants: a key is looked up before its tenant is known.
    Column("key_id", Text, primary_key=True),
    Column("display_name", Text, nullable=False, server_default=text("''")),
    # SHA-256 of the secret, which has 256 random bits: no slow hash is needed.
    Column("secret_hash", LargeBinary, nullable=False),
    Column("scopes", ARRAY(Text), nullable=False),
    Column("session_prefix", Text, nullable=False, server_default=text("''")),
    created(),
    # A principal.
    Column("created_by", Text, nullable=False),
    # The key that this one was rotated from.
    Column("replaces", Text, nullable=False, server_default=text("''")),
    Column("expires_at", DateTime(timezone=True)),
    Column("revoked_at", DateTime(timezone=True)),
    Column("last_used_at", DateTime(timezone=True)),
    _of_tenant("api_key_tenant_fkey"),
    CheckConstraint("octet_length(secret_hash) = 32", name="api_key_hash"),
    Index("api_key_of_tenant", "tenant_id", "created_at", "key_id"),
)


audit_event = Table(
    "audit_event",
    metadata,
    *ids("tenant_id"),
    # 1, 2, 3 … without gaps.
    Column("sequence", BigInteger, nullable=False),
    Column("occurred_at", DateTime(timezone=True), nullable=False),
    Column("principal", Text, nullable=False),
    Column("action", Text, nullable=False),
    # Ids that clients chose; empty where the action is about none.
    Column("session", Text, nullable=False),
    Column("memory", Text, nullable=False),
    Column("target", Text, nullable=False),
    Column("details", JSONB, nullable=False),
    # SHA-256 of the event and of the digest before it.
    Column("digest", LargeBinary, nullable=False),
    PrimaryKeyConstraint("tenant_id", "sequence", name="audit_event_pkey"),
    _of_tenant("audit_event_tenant_fkey"),
    CheckConstraint("sequence > 0", name="audit_event_sequence"),
    CheckConstraint("octet_length(digest) = 32", name="audit_event_digest"),
)


audit_head = Table(
    "audit_head",
    metadata,
    *ids("tenant_id"),
    Column("sequence", BigInteger, nullable=False),
    Column("digest", LargeBinary, nullable=False),
    PrimaryKeyConstraint("tenant_id", name="audit_head_pkey"),
    _of_tenant("audit_head_tenant_fkey"),
)


source_trust = Table(
    "source_trust",
    metadata,
    # The session's key; of a rule for all sessions of the tenant, the tenant's id.
    *ids("session_key", "tenant_id"),
    # A source, or the beginning of sources with an asterisk after it; '' for chunks without one.
    Column("source", Text, nullable=False),
    # One of Trust in service/domain/access/trust.py.
    Column("trust", Text, nullable=False),
    # Its level before it was quarantined; 'none': it had no rule; NULL: it is not quarantined.
    Column("trust_before", Text),
    created(),
    Column("updated_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    PrimaryKeyConstraint("session_key", "source", name="source_trust_pkey"),
    CheckConstraint("trust IN ('trusted', 'unverified', 'blocked')", name="source_trust_level"),
    CheckConstraint(
        "trust_before IS NULL OR (trust = 'blocked'"
        " AND trust_before IN ('trusted', 'unverified', 'blocked', 'none'))",
        name="source_trust_before",
    ),
    # Whether a tenant has any.
    Index("source_trust_tenant", "tenant_id"),
    # Of rules for beginnings, the longest first.
    Index(
        "source_trust_beginning",
        "session_key",
        text("length(source) DESC"),
        postgresql_where=text("right(source, 1) = '*'"),
    ),
)


tenant_quota = Table(
    "tenant_quota",
    metadata,
    *ids("tenant_id"),
    # NULL: the default of the settings; 0: no limit.
    Column("requests_per_second", BigInteger),
    Column("chunks_per_second", BigInteger),
    Column("bytes_per_second", BigInteger),
    Column("concurrent_asks", BigInteger),
    Column("concurrent_streams", BigInteger),
    Column("sessions", BigInteger),
    Column("memories", BigInteger),
    Column("stored_bytes", BigInteger),
    PrimaryKeyConstraint("tenant_id", name="tenant_quota_pkey"),
    _of_tenant("tenant_quota_tenant_fkey"),
)
