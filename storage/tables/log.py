"""Tables of the deployment, tenants, sessions and their logs, requests, removals and traces."""

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    Double,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    PrimaryKeyConstraint,
    SmallInteger,
    Table,
    Text,
    UniqueConstraint,
    Uuid,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

from storage.tables.common import count, created, ids, metadata, of_session, total

deployment = Table(
    "deployment",
    metadata,
    # One row, which all processes on this database share.
    Column("singleton", Boolean, primary_key=True, server_default=text("true")),
    Column("token_key", LargeBinary, nullable=False),
    Column("marker_key", LargeBinary, nullable=False),
    created(),
    # Neither written nor read any more (docs/decisions/0086): the next release drops them.
    Column("server_identifier", Text),
    Column("database_oid", BigInteger),
    Column("timeline", BigInteger),
    CheckConstraint("singleton", name="deployment_singleton"),
)


# Neither written nor read any more (docs/decisions/0086): the next release drops it.
process = Table(
    "process",
    metadata,
    Column("process_id", Uuid, primary_key=True),
    Column("kind", Text, nullable=False),
    Column("host", Text, nullable=False),
    Column("clock_off_seconds", Double, nullable=False),
    Column("round_trip_seconds", Double, nullable=False),
    Column("seen_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
)


model_condition = Table(
    "model_condition",
    metadata,
    # A deployment's name, or the model where it has none. It belongs to no tenant: its cause
    # contains no tenant's text.
    Column("place", Text, primary_key=True),
    Column("model", Text, nullable=False),
    # One of service/domain/prompting/faults.py.
    Column("fault", Text, nullable=False),
    Column("cause", Text, nullable=False),
    Column("failures", Integer, nullable=False, server_default=text("1")),
    Column("since", DateTime(timezone=True), nullable=False, server_default=func.now()),
    # When one call may test whether it has passed.
    Column("probe_at", DateTime(timezone=True), nullable=False),
)


tenant = Table(
    "tenant",
    metadata,
    Column("tenant_id", Uuid, primary_key=True),
    # The id that its clients know it by.
    Column("name", Text, nullable=False),
    created(),
    Column("display_name", Text, nullable=False, server_default=text("''")),
    Column("suspended_at", DateTime(timezone=True)),
    # Set: it is gone for its clients, and its name may be used again.
    Column("deleted_at", DateTime(timezone=True)),
    # As service/domain/operations/retention.py stores it.
    Column("retention", JSONB, nullable=False, server_default=text("'{}'")),
    Index("tenant_by_name", "name", unique=True, postgresql_where=text("deleted_at IS NULL")),
)


retention_turn = Table(
    "retention_turn",
    metadata,
    # A tenant with a policy of retention, from the first one on: the progress of the worker that
    # applies it, from session to session.
    Column("tenant_id", Uuid, nullable=False),
    # When the next pass is due; during a pass, when its lease ends.
    Column("ready_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    # The fencing token of the pass under way, or of the last one.
    Column("lease_id", Uuid),
    # Sessions up to this name, by its bytes, are done in this pass.
    Column("after_name", Text, nullable=False, server_default=text("''")),
    created(),
    # The last complete pass; NULL: there was none.
    Column("ended_at", DateTime(timezone=True)),
    PrimaryKeyConstraint("tenant_id", name="retention_turn_pkey"),
    ForeignKeyConstraint(
        ["tenant_id"], ["tenant.tenant_id"], name="retention_turn_tenant_fkey", ondelete="CASCADE"
    ),
)


session = Table(
    "session",
    metadata,
    # uuid5(tenant, name), so a name is unique without a look-up.
    *ids("session_key", "tenant_id"),
    Column("name", Text, nullable=False),
    # Position of the newest chunk; changes under this row's lock only.
    Column("head", BigInteger, nullable=False, server_default=text("0")),
    # The size of all chunks with their metadata. Metadata of old chunks, from before it counted,
    # is missing: adding it would mean reading every log.
    Column("content_bytes", BigInteger, nullable=False, server_default=text("0")),
    # Rises when a name is used again after erasure, so that old tokens are refused.
    Column("incarnation", Integer, nullable=False, server_default=text("1")),
    # A configuration of PostgreSQL's full-text search, by its name.
    Column("language", Text, nullable=False, server_default=text("'english'")),
    # chunk_word has the words up to here, and chunk_vector the vectors of embedding_model.
    Column("indexed_position", BigInteger, nullable=False, server_default=text("0")),
    Column("embedded_position", BigInteger, nullable=False, server_default=text("0")),
    Column("embedding_model", Text, nullable=False, server_default=text("''")),
    # Set by every append, which costs nothing where it is set already.
    Column("has_unindexed", Boolean, nullable=False, server_default=text("false")),
    Column("index_ready_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    Column("index_attempts", Integer, nullable=False, server_default=text("0")),
    # Why the last try to embed failed; empty when it did not.
    Column("index_failure", Text, nullable=False, server_default=text("''")),
    # The same for words, which wait for no model.
    Column("words_ready_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    Column("words_attempts", Integer, nullable=False, server_default=text("0")),
    Column("words_failure", Text, nullable=False, server_default=text("''")),
    created(),
    # Set for a tombstone, which row-level security hides. Its name may be used anew once no row of
    # the session is left.
    Column("deleted_at", DateTime(timezone=True)),
    # The first epoch of new memories: above that of each deleted memory, since a worker may still
    # have one of the same name.
    Column("first_epoch", BigInteger, nullable=False, server_default=text("0")),
    # The client's own keys and values.
    Column("metadata", JSONB, nullable=False, server_default=text("'{}'")),
    # Whether keep_out has rows of it, with which appends are compared.
    Column("keeps_out", Boolean, nullable=False, server_default=text("false")),
    # The memory that its first append makes: one of DefaultMemory.
    Column("default_memory", Text, nullable=False, server_default=text("'none'")),
    # What differs from the tenant's, as service/domain/operations/retention.py stores it.
    Column("retention", JSONB, nullable=False, server_default=text("'{}'")),
    # Chunks up to here have expired.
    total("expired_position"),
    # Answers from before this time have lost their trajectories; NULL: none has.
    Column("trajectories_expired_at", DateTime(timezone=True)),
    # Where it was imported from: `storage.log.sessions.SessionOrigin`.
    Column("imported_from", JSONB),
    # Rows of the session refer to both.
    PrimaryKeyConstraint("session_key", "tenant_id", name="session_pkey"),
    ForeignKeyConstraint(["tenant_id"], ["tenant.tenant_id"], name="session_tenant_fkey"),
    CheckConstraint("head >= 0", name="session_head"),
    # For lists. Its condition is true of each row; only statements that repeat it use the index:
    # migrations/schema/01_log.sql.
    # With COLLATE "C": by the bytes of names, whatever the database's own collation is.
    Index("session_of_tenant_by_bytes", "tenant_id", "name", postgresql_where=text("name > ''")),
    # Sessions with a policy of their own, as above.
    Index(
        "session_with_retention",
        "tenant_id",
        "name",
        postgresql_where=text("retention <> '{}'::jsonb AND name > ''"),
    ),
    Index(
        "session_turns",
        "tenant_id",
        "index_ready_at",
        postgresql_where=text("has_unindexed AND index_ready_at > '-infinity'"),
    ),
)


producer = Table(
    "producer",
    metadata,
    *ids("session_key", "tenant_id"),
    Column("producer_id", Text, nullable=False),
    count("epoch"),
    count("last_sequence"),
    PrimaryKeyConstraint("session_key", "producer_id", name="producer_pkey"),
    of_session("producer_session_fkey"),
)


chunk = Table(
    "chunk",
    metadata,
    *ids("session_key", "tenant_id"),
    count("position"),
    Column("producer_id", Text, nullable=False),
    count("producer_sequence"),
    Column("kind", Text, nullable=False),
    Column("role", Text, nullable=False),
    Column("text", Text, nullable=False),
    Column("observation", Text, nullable=False),
    Column("thought", Text, nullable=False),
    Column("action", Text, nullable=False),
    # NULL: of a release that did not store it.
    Column("observed_first", Boolean),
    Column("metadata", JSONB),
    # NULL where the chunk has none.
    Column("thread", Text),
    Column("source", Text),
    Column("occurred_at", DateTime(timezone=True)),
    # SHA-256 of the content; of a tombstone the keyed digest of that.
    Column("digest", LargeBinary, nullable=False),
    # Set for a tombstone: the redaction that emptied its other columns.
    Column("redaction_id", Uuid),
    created(),
    PrimaryKeyConstraint("session_key", "position", name="chunk_pkey"),
    # A producer's sequence number is stored once, for ever.
    UniqueConstraint("session_key", "producer_id", "producer_sequence", name="chunk_once"),
    ForeignKeyConstraint(
        ["session_key", "producer_id"],
        ["producer.session_key", "producer.producer_id"],
        name="chunk_producer_fkey",
    ),
    Index(
        "chunk_of_thread",
        "session_key",
        "thread",
        "position",
        postgresql_where=text("thread IS NOT NULL"),
    ),
    CheckConstraint("position >= 1", name="chunk_position"),
    CheckConstraint("producer_sequence >= 1", name="chunk_sequence"),
    CheckConstraint("kind IN ('text', 'message', 'step')", name="chunk_kind"),
)


redaction = Table(
    "redaction",
    metadata,
    # The removal of the content of chunks.
    *ids("session_key", "redaction_id", "tenant_id"),
    # 'redacted' at a client's request; 'expired' by a policy of retention.
    Column("cause", Text, nullable=False),
    # Its principal, and its reason in the client's words.
    Column("principal", Text, nullable=False),
    Column("reason", Text, nullable=False),
    # The number of its tombstones.
    count("chunks"),
    created(),
    # Its tombstones, until everything derived from them is removed.
    Column("positions", ARRAY(BigInteger), nullable=False, server_default=text("'{}'")),
    # When the first of them was committed: what is older was not derived from them.
    Column("since", DateTime(timezone=True)),
    # Rows that were removed, by table; `table.column` where rows stay.
    Column("removed", JSONB, nullable=False, server_default=text("'{}'")),
    # When nothing derived from them was left.
    Column("ended_at", DateTime(timezone=True)),
    PrimaryKeyConstraint("session_key", "redaction_id", name="redaction_pkey"),
    of_session("redaction_session_fkey", ondelete="CASCADE"),
    CheckConstraint("cause IN ('redacted', 'expired')", name="redaction_cause"),
    CheckConstraint("chunks >= 0", name="redaction_chunks"),
)


keep_out = Table(
    "keep_out",
    metadata,
    # What is stored as a tombstone when it is appended.
    *ids("session_key", "tenant_id"),
    # The number of words of a phrase; 0: the whole text of a chunk.
    Column("words", Integer, nullable=False),
    # The keyed digest of the normalized words.
    Column("digest", LargeBinary, nullable=False),
    # The redaction that its tombstones belong to.
    Column("redaction_id", Uuid, nullable=False),
    created(),
    PrimaryKeyConstraint("session_key", "words", "digest", name="keep_out_pkey"),
    of_session("keep_out_session_fkey", ondelete="CASCADE"),
    CheckConstraint("words >= 0", name="keep_out_words"),
    CheckConstraint("octet_length(digest) = 32", name="keep_out_digest"),
)


removal = Table(
    "removal",
    metadata,
    *ids("session_key", "tenant_id"),
    # The session's own key, or the id of a memory that is deleted alone.
    Column("item_id", Uuid, nullable=False),
    created(),
    Column("ready_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    PrimaryKeyConstraint("session_key", "item_id", name="removal_pkey"),
    of_session("removal_session_fkey"),
    Index(
        "removal_turns",
        "tenant_id",
        "ready_at",
        # True of each row; only the queue uses this index: see take_work.
        postgresql_where=text("ready_at > '-infinity'"),
    ),
)


trace_context = Table(
    "trace_context",
    metadata,
    *ids("session_key", "tenant_id"),
    # The session for an append, the memory for a commit, or the answer for a question.
    Column("owner_id", Uuid, nullable=False),
    # Positions in the log; both are the revision for a commit, and 0 for a question.
    count("from_position"),
    count("to_position"),
    # As W3C Trace Context has them.
    Column("trace_id", LargeBinary, nullable=False),
    Column("span_id", LargeBinary, nullable=False),
    Column("flags", SmallInteger, nullable=False),
    created(),
    PrimaryKeyConstraint("session_key", "owner_id", "to_position", name="trace_context_pkey"),
    # It goes with its session.
    of_session("trace_context_session_fkey", ondelete="CASCADE"),
    CheckConstraint("octet_length(trace_id) = 16", name="trace_context_trace"),
    CheckConstraint("octet_length(span_id) = 8", name="trace_context_span"),
    CheckConstraint(
        "0 <= from_position AND from_position <= to_position", name="trace_context_positions"
    ),
    # For sweeps, which read the oldest of all tenants.
    Index("trace_context_age", "created_at"),
    prefixes=["UNLOGGED"],
)


#: The constraint that prevents a request from being executed twice.
REQUEST_KEY = "request_pkey"

request = Table(
    "request",
    metadata,
    # The session of the request; without one, the key of the empty name.
    *ids("session_key", "tenant_id"),
    # The client's own name for it.
    Column("request_id", Text, nullable=False),
    Column("method", Text, nullable=False),
    # SHA-256 of the request; the keyed digest of that once chunks of it are redacted.
    Column("digest", LargeBinary, nullable=False),
    # For an append: the positions of its chunks.
    Column("first_position", BigInteger),
    Column("last_position", BigInteger),
    # For any other method: the serialized response of the first call.
    Column("response", LargeBinary),
    created(),
    # When it may be removed; NULL: not before the session is.
    Column("expires_at", DateTime(timezone=True)),
    PrimaryKeyConstraint("session_key", "request_id", name=REQUEST_KEY),
    # Both in one transaction: no request is stored without its chunks.
    ForeignKeyConstraint(
        ["session_key", "last_position"],
        ["chunk.session_key", "chunk.position"],
        name="request_chunk_fkey",
    ),
    CheckConstraint("octet_length(digest) = 32", name="request_digest"),
    # For removals: references to a removed chunk.
    Index(
        "request_by_chunk",
        "session_key",
        "last_position",
        postgresql_where=text("last_position IS NOT NULL"),
    ),
    CheckConstraint(
        "method <> 'Append' OR (first_position >= 1 AND last_position >= first_position) IS TRUE",
        name="request_positions",
    ),
    Index("request_expiry", "expires_at", postgresql_where=text("expires_at IS NOT NULL")),
)
