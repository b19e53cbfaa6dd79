"""Tables of memories of every kind, and their revisions.

Their keys make steps exactly-once: read `revision` first.
"""

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Computed,
    DateTime,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    PrimaryKeyConstraint,
    Table,
    Text,
    UniqueConstraint,
    Uuid,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB

from storage.tables.common import count, created, ids, metadata, of_memory, of_session, of_waiting

memory = Table(
    "memory",
    metadata,
    *ids("session_key", "tenant_id"),
    # uuid5(session_key, name).
    Column("memory_id", Uuid, nullable=False),
    Column("name", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("spec", JSONB, nullable=False),
    Column("revision", BigInteger, nullable=False, server_default=text("0")),
    Column("applied_position", BigInteger, nullable=False, server_default=text("0")),
    # Raised by every claim; fences the worker of the claim before.
    Column("epoch", BigInteger, nullable=False, server_default=text("0")),
    Column("status", Text, nullable=False, server_default=text("'active'")),
    # Set by the append that finds it unset, cleared by the step that reaches the head under the
    # session's lock. So a busy stream does not write it.
    Column("has_work", Boolean, nullable=False, server_default=text("false")),
    Column("ready_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    # Failed tries of the step at the cursor.
    Column("attempts", Integer, nullable=False, server_default=text("0")),
    created(),
    # The schema since it has more fields; NULL: that of the spec, which never changes.
    Column("schema_source", Text),
    Column("rebuilt_from", Text),
    # Chunks up to here are read without waiting for more.
    Column("flush_position", BigInteger, nullable=False, server_default=text("0")),
    # A consolidation is requested once everything up to here is read.
    Column("consolidate_position", BigInteger),
    # Size of the memory after its last consolidation: another one is only worth it when the memory
    # has grown since.
    Column("consolidated_tokens", BigInteger, nullable=False, server_default=text("0")),
    # The counts of the folding policy since the last fold.
    Column("fold_state", JSONB),
    # Why no call may be made now: a budget is exhausted.
    Column("held_reason", Text),
    # A tree is closed once everything up to here is in it, and reads nothing after it.
    Column("seal_position", BigInteger),
    # It has nothing to do before `ready_at`, unless something is appended: what is recent, or
    # small talk, waits for more.
    Column("resting", Boolean, nullable=False, server_default=text("false")),
    # An append wakes it when the log reaches this position; NULL: any append does.
    Column("wake_position", BigInteger),
    # The model whose condition it waits for, and why; NULL: it waits for none.
    Column("waiting_model", Text),
    Column("waiting_cause", Text),
    # What rejections of its steps mean for readers: service/domain/prism/losses.py.
    Column("losses", JSONB),
    # The revision that the entries in memory_entry are of. The release before does not write it:
    # workers write the entries that are missing.
    Column("entry_revision", BigInteger, nullable=False, server_default=text("0")),
    # Calls of claims up to this epoch may have read what was redacted: their replies are not kept.
    Column("redacted_epoch", BigInteger, nullable=False, server_default=text("0")),
    # Set when it is deleted: row-level security hides it until its rows are removed.
    Column("deleted_at", DateTime(timezone=True)),
    # Positions before the cursor that it is to read again: what their step wrote was undone.
    Column("reread_positions", ARRAY(BigInteger)),
    # History up to this revision is thinned: see `revision.expired`.
    Column("thinned_revision", BigInteger, nullable=False, server_default=text("0")),
    # Quarantines and releases that it has yet to apply; NULL: none. Until then no step begins.
    Column("source_changes", JSONB),
    # The same for workers that look at all tenants, and may not read the names of sources.
    Column("has_source_changes", Boolean, nullable=False, server_default=text("false")),
    PrimaryKeyConstraint("session_key", "memory_id", name="memory_pkey"),
    of_session("memory_session_fkey"),
    # The cursor is always one that a revision wrote.
    ForeignKeyConstraint(
        ["session_key", "memory_id", "revision", "applied_position"],
        [
            "revision.session_key",
            "revision.memory_id",
            "revision.revision",
            "revision.to_position",
        ],
        name="memory_revision_fkey",
        deferrable=True,
        initially="DEFERRED",
        use_alter=True,
    ),
    CheckConstraint("kind IN ('prism', 'tree', 'state')", name="memory_kind"),
    CheckConstraint("status IN ('active', 'stalled', 'sealed')", name="memory_status"),
    Index(
        "memory_turns",
        "tenant_id",
        "ready_at",
        # The last condition is true of each row; only the queue uses this index: see take_work.
        postgresql_where=text("has_work AND status = 'active' AND ready_at > '-infinity'"),
    ),
    # Memories that a budget defers, for changes of budgets.
    Index(
        "memory_held",
        "tenant_id",
        "session_key",
        postgresql_where=text("held_reason IS NOT NULL"),
    ),
    Index(
        "memory_changing",
        "tenant_id",
        "session_key",
        postgresql_where=text("has_source_changes"),
    ),
    of_waiting("memory_waiting"),
)


revision = Table(
    "revision",
    metadata,
    *ids("session_key", "memory_id", "tenant_id"),
    count("revision"),
    Column("parent_revision", BigInteger),
    # The step read positions from_position + 1 to to_position.
    count("from_position"),
    count("to_position"),
    Column("kind", Text, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    # SHA-256 of the value after it.
    Column("digest", LargeBinary, nullable=False),
    Column(
        "last_chunk", BigInteger, Computed("NULLIF(to_position, 0)", persisted=True), nullable=True
    ),
    created(),
    # The comment on a change by hand.
    Column("comment", Text, nullable=False, server_default=text("''")),
    # The revision whose state a rollback restored; of a tree or a state memory also a quarantine.
    Column("restored_revision", BigInteger),
    # The schema from this revision on, when it changed.
    Column("schema_source", Text),
    # The earlier revisions that a quarantine undoes; the positions that it, or a release, reads.
    Column("undone", ARRAY(BigInteger)),
    Column("read_positions", ARRAY(BigInteger)),
    # A quarantine of a source went back to before it: it is not among those that count.
    Column("set_aside", Boolean, nullable=False, server_default=text("false")),
    # Its state cannot be read any more: a policy of retention kept a later one of the same day.
    Column("expired", Boolean, nullable=False, server_default=text("false")),
    PrimaryKeyConstraint("session_key", "memory_id", "revision", name="revision_pkey"),
    # The chain below refers to it.
    UniqueConstraint("session_key", "memory_id", "revision", "to_position", name="revision_end"),
    of_memory("revision_memory_fkey"),
    # The chain: a revision begins where its parent ended. With the primary key it prevents a gap, a
    # repeat or a fork.
    ForeignKeyConstraint(
        ["session_key", "memory_id", "parent_revision", "from_position"],
        [
            "revision.session_key",
            "revision.memory_id",
            "revision.revision",
            "revision.to_position",
        ],
        name="revision_chain_fkey",
    ),
    ForeignKeyConstraint(
        ["session_key", "last_chunk"],
        ["chunk.session_key", "chunk.position"],
        name="revision_chunk_fkey",
    ),
    CheckConstraint("(revision = 0) = (parent_revision IS NULL)", name="revision_root"),
    CheckConstraint("parent_revision = revision - 1", name="revision_parent"),
    ForeignKeyConstraint(
        ["session_key", "memory_id", "restored_revision"],
        ["revision.session_key", "revision.memory_id", "revision.revision"],
        name="revision_restored_fkey",
    ),
    CheckConstraint(
        "kind IN ('create', 'step', 'skip', 'fold', 'edit', 'rollback', 'consolidation', 'schema',"
        " 'build', 'seal', 'episode', 'redaction', 'quarantine')",
        name="revision_kind",
    ),
    CheckConstraint(
        "kind = 'quarantine' OR (kind = 'rollback') = (restored_revision IS NOT NULL)",
        name="revision_restored",
    ),
    CheckConstraint("(kind = 'schema') = (schema_source IS NOT NULL)", name="revision_schema"),
    # A quarantine of a source may also go back, or on to where the memory was.
    CheckConstraint(
        "kind = 'quarantine' AND from_position >= 0 AND to_position >= 0"
        " OR (kind IN ('step', 'skip')) = (to_position > from_position)"
        " AND to_position >= from_position AND from_position >= 0",
        name="revision_range",
    ),
    # No position begins two steps that count: other revisions have NULL, which is distinct.
    Index(
        "revision_once",
        "session_key",
        "memory_id",
        "from_position",
        text(
            "NULLIF(to_position > from_position AND NOT set_aside AND kind <> 'quarantine', false)"
        ),
        unique=True,
    ),
    Index(
        "revision_rollbacks",
        "session_key",
        "memory_id",
        "revision",
        postgresql_where=text("restored_revision IS NOT NULL"),
    ),
    # For removals: references to a removed chunk.
    Index("revision_by_chunk", "session_key", "last_chunk"),
    Index(
        "revision_restoring",
        "session_key",
        "memory_id",
        "restored_revision",
        postgresql_where=text("restored_revision IS NOT NULL"),
    ),
)


dead_letter = Table(
    "dead_letter",
    metadata,
    *ids("session_key", "memory_id", "letter_id", "tenant_id"),
    # The step that failed: positions from_position + 1 to to_position.
    count("from_position"),
    count("to_position"),
    Column("attempts", Integer, nullable=False),
    Column("cause", Text, nullable=False),
    # NULL while it stalls the memory; then 'retried' or 'skipped'.
    Column("resolution", Text),
    # The model that refused it, maybe by the deployment's fault: see Circuits.
    Column("ambiguous_model", Text),
    created(),
    PrimaryKeyConstraint("session_key", "memory_id", "letter_id", name="dead_letter_pkey"),
    of_memory("dead_letter_memory_fkey"),
    CheckConstraint("resolution IN ('retried', 'skipped')", name="dead_letter_resolution"),
    Index(
        "dead_letter_ambiguous",
        "ambiguous_model",
        postgresql_where=text("ambiguous_model IS NOT NULL AND resolution IS NULL"),
    ),
    # A memory has one open letter.
    Index(
        "dead_letter_open",
        "session_key",
        "memory_id",
        unique=True,
        postgresql_where=text("resolution IS NULL"),
    ),
)
