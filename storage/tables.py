"""The tables, as SQLAlchemy Core knows them; migrations/ makes them.

Every table that belongs to a session has `session_key` first in every key and
`tenant_id` beside it for row-level security. What makes steps exactly-once lives
here, in keys: read `revision` first.
"""

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Computed,
    Date,
    DateTime,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
    UniqueConstraint,
    Uuid,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB, TSVECTOR

metadata = MetaData()

#: Role that runtime processes take on; row-level security binds it.
APP_ROLE = "palimpsest_app"
#: Role that sees which items are runnable, of all tenants, and nothing else.
SWEEPER_ROLE = "palimpsest_sweeper"


def _created() -> Column[object]:
    return Column("created_at", DateTime(timezone=True), nullable=False, server_default=func.now())


def _count(name: str) -> Column[int]:
    return Column(name, BigInteger, nullable=False)


def _sum(name: str) -> Column[int]:
    return Column(name, BigInteger, nullable=False, server_default=text("0"))


deployment = Table(
    "deployment",
    metadata,
    # One row: what all processes on this database share.
    Column("singleton", Boolean, primary_key=True, server_default=text("true")),
    Column("token_key", LargeBinary, nullable=False),
    Column("marker_key", LargeBinary, nullable=False),
    _created(),
    CheckConstraint("singleton", name="deployment_singleton"),
)

tenant = Table(
    "tenant",
    metadata,
    Column("tenant_id", Uuid, primary_key=True),
    Column("name", Text, nullable=False),
    _created(),
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
    _created(),
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
    _count("epoch"),
    _count("last_sequence"),
    PrimaryKeyConstraint("session_key", "producer_id", name="producer_pkey"),
    ForeignKeyConstraint(["session_key"], ["session.session_key"], name="producer_session_fkey"),
)

chunk = Table(
    "chunk",
    metadata,
    Column("session_key", Uuid, nullable=False),
    _count("position"),
    Column("tenant_id", Uuid, nullable=False),
    Column("producer_id", Text, nullable=False),
    _count("producer_sequence"),
    Column("kind", Text, nullable=False),
    Column("role", Text, nullable=False),
    Column("text", Text, nullable=False),
    Column("observation", Text, nullable=False),
    Column("thought", Text, nullable=False),
    Column("action", Text, nullable=False),
    Column("metadata", JSONB),
    Column("digest", LargeBinary, nullable=False),
    _created(),
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

memory = Table(
    "memory",
    metadata,
    Column("session_key", Uuid, nullable=False),
    # uuid5(session_key, name).
    Column("memory_id", Uuid, nullable=False),
    Column("tenant_id", Uuid, nullable=False),
    Column("name", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("spec", JSONB, nullable=False),
    Column("revision", BigInteger, nullable=False, server_default=text("0")),
    Column("applied_position", BigInteger, nullable=False, server_default=text("0")),
    # Raised by every worker that takes the memory over; fences the one before.
    Column("epoch", BigInteger, nullable=False, server_default=text("0")),
    Column("status", Text, nullable=False, server_default=text("'active'")),
    # Set by the append that finds it unset, cleared by the step that reaches the
    # head under the session's lock. So a busy stream does not write here.
    Column("has_work", Boolean, nullable=False, server_default=text("false")),
    Column("ready_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    # Failed tries of the step at the cursor.
    Column("attempts", Integer, nullable=False, server_default=text("0")),
    _created(),
    # The schema since it got more fields; NULL: the spec's, which never changes.
    Column("schema_source", Text),
    Column("rebuilt_from", Text),
    # Chunks up to here are read without waiting for more.
    Column("flush_position", BigInteger, nullable=False, server_default=text("0")),
    # Somebody asked for a consolidation once everything up to here is read.
    Column("consolidate_position", BigInteger),
    # Size of the memory behind its last consolidation: it is worth another try only
    # when the memory has grown since.
    Column("consolidated_tokens", BigInteger, nullable=False, server_default=text("0")),
    # What the folding policy has counted since the last fold.
    Column("fold_state", JSONB),
    # Why no call may be made now: a budget is used up.
    Column("held_reason", Text),
    # A tree is closed once everything up to here is in it, and reads nothing behind it.
    Column("seal_position", BigInteger),
    PrimaryKeyConstraint("session_key", "memory_id", name="memory_pkey"),
    ForeignKeyConstraint(["session_key"], ["session.session_key"], name="memory_session_fkey"),
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
    CheckConstraint("kind IN ('prism', 'tree')", name="memory_kind"),
    CheckConstraint("status IN ('active', 'stalled', 'sealed')", name="memory_status"),
    Index(
        "memory_runnable",
        "ready_at",
        postgresql_where=text("has_work AND status = 'active'"),
    ),
)

revision = Table(
    "revision",
    metadata,
    Column("session_key", Uuid, nullable=False),
    Column("memory_id", Uuid, nullable=False),
    _count("revision"),
    Column("tenant_id", Uuid, nullable=False),
    Column("parent_revision", BigInteger),
    # The step read positions from_position + 1 to to_position.
    _count("from_position"),
    _count("to_position"),
    Column("kind", Text, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    # SHA-256 of the value after it.
    Column("digest", LargeBinary, nullable=False),
    Column(
        "last_chunk", BigInteger, Computed("NULLIF(to_position, 0)", persisted=True), nullable=True
    ),
    _created(),
    # By whoever made it by hand.
    Column("comment", Text, nullable=False, server_default=text("''")),
    # Whose state a rollback brought back.
    Column("restored_revision", BigInteger),
    # The schema from this revision on, when it changed.
    Column("schema_source", Text),
    PrimaryKeyConstraint("session_key", "memory_id", "revision", name="revision_pkey"),
    # What the chain below refers to.
    UniqueConstraint("session_key", "memory_id", "revision", "to_position", name="revision_end"),
    ForeignKeyConstraint(
        ["session_key", "memory_id"],
        ["memory.session_key", "memory.memory_id"],
        name="revision_memory_fkey",
    ),
    # The chain: a revision begins where its parent ended. With the primary key
    # it leaves no room for a gap, a repeat or a fork.
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
        " 'build', 'seal')",
        name="revision_kind",
    ),
    CheckConstraint(
        "(kind = 'rollback') = (restored_revision IS NOT NULL)", name="revision_restored"
    ),
    CheckConstraint("(kind = 'schema') = (schema_source IS NOT NULL)", name="revision_schema"),
    CheckConstraint(
        "(kind IN ('step', 'skip')) = (to_position > from_position)"
        " AND to_position >= from_position AND from_position >= 0",
        name="revision_range",
    ),
    # No position begins two steps.
    Index(
        "revision_once",
        "session_key",
        "memory_id",
        "from_position",
        unique=True,
        postgresql_where=text("to_position > from_position"),
    ),
    Index(
        "revision_rollbacks",
        "session_key",
        "memory_id",
        "revision",
        postgresql_where=text("kind = 'rollback'"),
    ),
)


def _of_revision(name: str) -> ForeignKeyConstraint:
    return ForeignKeyConstraint(
        ["session_key", "memory_id", "revision"],
        ["revision.session_key", "revision.memory_id", "revision.revision"],
        name=name,
    )


def _of_memory(name: str) -> ForeignKeyConstraint:
    return ForeignKeyConstraint(
        ["session_key", "memory_id"], ["memory.session_key", "memory.memory_id"], name=name
    )


amendment = Table(
    "amendment",
    metadata,
    Column("session_key", Uuid, nullable=False),
    Column("memory_id", Uuid, nullable=False),
    _count("revision"),
    Column("ordinal", Integer, nullable=False),
    Column("tenant_id", Uuid, nullable=False),
    # RFC 9535 normalized path.
    Column("path", Text, nullable=False),
    Column("op", Text, nullable=False),
    # Canonical JSON; text, since jsonb would reorder keys and rewrite numbers.
    Column("value", Text, nullable=False),
    Column("op_corrected", Boolean, nullable=False),
    PrimaryKeyConstraint("session_key", "memory_id", "revision", "ordinal", name="amendment_pkey"),
    _of_revision("amendment_revision_fkey"),
    CheckConstraint("op IN ('add', 'update', 'remove')", name="amendment_op"),
    # The beginning of the path, in the order of its bytes: what touches a path is found
    # by a range. A whole path may be longer than an index entry.
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
    Column("session_key", Uuid, nullable=False),
    Column("memory_id", Uuid, nullable=False),
    _count("revision"),
    Column("ordinal", Integer, nullable=False),
    Column("tenant_id", Uuid, nullable=False),
    Column("proposal", Text, nullable=False),
    Column("reason", Text, nullable=False),
    PrimaryKeyConstraint("session_key", "memory_id", "revision", "ordinal", name="rejection_pkey"),
    _of_revision("rejection_revision_fkey"),
)

prism_base = Table(
    "prism_base",
    metadata,
    # A base that a fold (or the creation) wrote. Kept: it is also a snapshot.
    Column("session_key", Uuid, nullable=False),
    Column("memory_id", Uuid, nullable=False),
    _count("revision"),
    Column("tenant_id", Uuid, nullable=False),
    Column("value", Text, nullable=False),
    PrimaryKeyConstraint("session_key", "memory_id", "revision", name="prism_base_pkey"),
    _of_revision("prism_base_revision_fkey"),
)

prism_snapshot = Table(
    "prism_snapshot",
    metadata,
    # A state between two bases, so that any revision is read from one close by. Prompts
    # do not know it.
    Column("session_key", Uuid, nullable=False),
    Column("memory_id", Uuid, nullable=False),
    _count("revision"),
    Column("tenant_id", Uuid, nullable=False),
    Column("value", Text, nullable=False),
    PrimaryKeyConstraint("session_key", "memory_id", "revision", name="prism_snapshot_pkey"),
    _of_revision("prism_snapshot_revision_fkey"),
)

prism_value = Table(
    "prism_value",
    metadata,
    # The newest state, so that reading it is one row.
    Column("session_key", Uuid, nullable=False),
    Column("memory_id", Uuid, nullable=False),
    Column("tenant_id", Uuid, nullable=False),
    _count("revision"),
    Column("value", Text, nullable=False),
    # Amendments since the newest base or snapshot.
    Column("unsaved_amendments", Integer, nullable=False, server_default=text("0")),
    PrimaryKeyConstraint("session_key", "memory_id", name="prism_value_pkey"),
    _of_revision("prism_value_revision_fkey"),
)

tree_node = Table(
    "tree_node",
    metadata,
    # A node of a summary tree, written once. The keys leave no room for a gap, an overlap
    # or a second node over the same text: see `tree_node_chain_fkey`.
    Column("session_key", Uuid, nullable=False),
    Column("memory_id", Uuid, nullable=False),
    # 0 for leaves.
    Column("level", Integer, nullable=False),
    # 1, 2, 3 … on its level.
    _count("number"),
    Column("tenant_id", Uuid, nullable=False),
    # The revision that brought it.
    _count("revision"),
    # On the level below; 0 and 0 for a leaf.
    _count("first_child"),
    Column("children", Integer, nullable=False),
    # The text from here to before there: positions, and characters into their chunks.
    _count("start_position"),
    _count("start_offset"),
    _count("end_position"),
    _count("end_offset"),
    Column("summary", Text, nullable=False),
    Column("made", Text, nullable=False),
    _count("text_tokens"),
    _count("summary_tokens"),
    # The words of a leaf's text, for retrieval.
    Column("words", TSVECTOR),
    Column("previous", BigInteger, Computed("NULLIF(number - 1, 0)", persisted=True)),
    _created(),
    PrimaryKeyConstraint("session_key", "memory_id", "level", "number", name="tree_node_pkey"),
    # What the chain below refers to.
    UniqueConstraint(
        "session_key",
        "memory_id",
        "level",
        "number",
        "end_position",
        "end_offset",
        name="tree_node_end",
    ),
    # The chain: on every level a node begins where the one before it ended.
    ForeignKeyConstraint(
        ["session_key", "memory_id", "level", "previous", "start_position", "start_offset"],
        [
            "tree_node.session_key",
            "tree_node.memory_id",
            "tree_node.level",
            "tree_node.number",
            "tree_node.end_position",
            "tree_node.end_offset",
        ],
        name="tree_node_chain_fkey",
    ),
    _of_revision("tree_node_revision_fkey"),
    CheckConstraint("number >= 1 AND level >= 0", name="tree_node_place"),
    CheckConstraint(
        "number > 1 OR (start_position = 1 AND start_offset = 0)", name="tree_node_first"
    ),
    CheckConstraint(
        "(end_position, end_offset) > (start_position, start_offset)", name="tree_node_range"
    ),
    CheckConstraint(
        "(level = 0) = (children = 0) AND (level = 0) = (first_child = 0)",
        name="tree_node_children",
    ),
    CheckConstraint("made IN ('model', 'joined', 'cut', 'skipped')", name="tree_node_made"),
    # The parent of a child; no child begins two.
    Index(
        "tree_node_parent",
        "session_key",
        "memory_id",
        "level",
        "first_child",
        unique=True,
        postgresql_where=text("level > 0"),
    ),
)

call = Table(
    "call",
    metadata,
    # The ledger, and the journal that replays a reply instead of paying again.
    Column("session_key", Uuid, nullable=False),
    Column("call_id", Uuid, nullable=False),
    Column("tenant_id", Uuid, nullable=False),
    # NULL for calls that no memory made; the foreign key then holds nothing.
    Column("memory_id", Uuid),
    # In the order of its bytes, so that a range finds all that begin alike.
    Column("occasion", Text(collation="C"), nullable=False),
    Column("key", LargeBinary, nullable=False),
    Column("purpose", Text, nullable=False),
    Column("template", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("reply", Text),
    Column("failure", Text),
    _count("input_tokens"),
    _count("predicted_cached_tokens"),
    Column("reported_cached_tokens", BigInteger),
    Column("cache_write_tokens", BigInteger),
    _count("output_tokens"),
    Column("cost_micro_usd", BigInteger),
    _count("latency_ms"),
    _created(),
    # Which deployment of the model was asked; empty where there is one only.
    Column("deployment", Text, nullable=False, server_default=text("''")),
    # Why the provider's cache had other tokens than predicted.
    Column("residual", Text),
    PrimaryKeyConstraint("session_key", "call_id", name="call_pkey"),
    _of_memory("call_memory_fkey"),
    CheckConstraint("(reply IS NULL) <> (failure IS NULL)", name="call_outcome"),
    Index(
        "call_once",
        "session_key",
        "key",
        unique=True,
        postgresql_where=text("reply IS NOT NULL"),
    ),
    Index("call_by_memory", "session_key", "memory_id", "occasion"),
)

intent = Table(
    "intent",
    metadata,
    # A call that is about to be made or under way: there from before it until its outcome
    # is stored. Who finds one whose lease holds waits for that outcome.
    Column("session_key", Uuid, nullable=False),
    Column("key", LargeBinary, nullable=False),
    Column("tenant_id", Uuid, nullable=False),
    Column("memory_id", Uuid),
    Column("purpose", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("deployment", Text, nullable=False, server_default=text("''")),
    # Rises when somebody else takes the call over.
    Column("fence", BigInteger, nullable=False, server_default=text("1")),
    Column("lease_until", DateTime(timezone=True), nullable=False),
    # What the call may come to, for budgets.
    _count("reserved_tokens"),
    _count("reserved_micro_usd"),
    _created(),
    PrimaryKeyConstraint("session_key", "key", name="intent_pkey"),
    ForeignKeyConstraint(["session_key"], ["session.session_key"], name="intent_session_fkey"),
    _of_memory("intent_memory_fkey"),
    Index("intent_by_tenant", "tenant_id"),
)

spend = Table(
    "spend",
    metadata,
    # The ledger's sums by day. A trigger of `call` writes them, so that they are what
    # is in the ledger whoever writes there.
    Column("session_key", Uuid, nullable=False),
    # The memory, or the session for calls that no memory made.
    Column("owner_id", Uuid, nullable=False),
    # In UTC.
    Column("day", Date, nullable=False),
    Column("tenant_id", Uuid, nullable=False),
    _sum("calls"),
    _sum("failed_calls"),
    _sum("input_tokens"),
    _sum("predicted_cached_tokens"),
    _sum("reported_cached_tokens"),
    # Calls whose provider says nothing of its cache.
    _sum("unreported_calls"),
    _sum("cache_write_tokens"),
    _sum("output_tokens"),
    _sum("cost_micro_usd"),
    # Calls of models without a price.
    _sum("unpriced_calls"),
    PrimaryKeyConstraint("session_key", "owner_id", "day", name="spend_pkey"),
    ForeignKeyConstraint(["session_key"], ["session.session_key"], name="spend_session_fkey"),
    Index("spend_by_tenant", "tenant_id", "day"),
)

budget = Table(
    "budget",
    metadata,
    # What a memory, or all of a session, may spend.
    Column("session_key", Uuid, nullable=False),
    # The memory, or the session for all that belongs to it.
    Column("owner_id", Uuid, nullable=False),
    Column("period", Text, nullable=False),
    Column("tenant_id", Uuid, nullable=False),
    Column("limit_tokens", BigInteger),
    Column("limit_micro_usd", BigInteger),
    PrimaryKeyConstraint("session_key", "owner_id", "period", name="budget_pkey"),
    ForeignKeyConstraint(["session_key"], ["session.session_key"], name="budget_session_fkey"),
    CheckConstraint("period IN ('day', 'total')", name="budget_period"),
    CheckConstraint("limit_tokens >= 0", name="budget_tokens"),
    CheckConstraint("limit_micro_usd >= 0", name="budget_micro_usd"),
)

tenant_budget = Table(
    "tenant_budget",
    metadata,
    Column("tenant_id", Uuid, nullable=False),
    Column("period", Text, nullable=False),
    Column("limit_tokens", BigInteger),
    Column("limit_micro_usd", BigInteger),
    PrimaryKeyConstraint("tenant_id", "period", name="tenant_budget_pkey"),
    ForeignKeyConstraint(["tenant_id"], ["tenant.tenant_id"], name="tenant_budget_tenant_fkey"),
    CheckConstraint("period IN ('day', 'total')", name="tenant_budget_period"),
    CheckConstraint("limit_tokens >= 0", name="tenant_budget_tokens"),
    CheckConstraint("limit_micro_usd >= 0", name="tenant_budget_micro_usd"),
)

dead_letter = Table(
    "dead_letter",
    metadata,
    Column("session_key", Uuid, nullable=False),
    Column("memory_id", Uuid, nullable=False),
    Column("letter_id", Uuid, nullable=False),
    Column("tenant_id", Uuid, nullable=False),
    # The step that failed: positions from_position + 1 to to_position.
    _count("from_position"),
    _count("to_position"),
    Column("attempts", Integer, nullable=False),
    Column("cause", Text, nullable=False),
    # NULL while the memory is stalled by it; then 'retried' or 'skipped'.
    Column("resolution", Text),
    _created(),
    PrimaryKeyConstraint("session_key", "memory_id", "letter_id", name="dead_letter_pkey"),
    _of_memory("dead_letter_memory_fkey"),
    CheckConstraint("resolution IN ('retried', 'skipped')", name="dead_letter_resolution"),
    # A memory is stalled by one thing at a time.
    Index(
        "dead_letter_open",
        "session_key",
        "memory_id",
        unique=True,
        postgresql_where=text("resolution IS NULL"),
    ),
)

answer = Table(
    "answer",
    metadata,
    Column("session_key", Uuid, nullable=False),
    Column("answer_id", Uuid, nullable=False),
    Column("tenant_id", Uuid, nullable=False),
    Column("memory_id", Uuid, nullable=False),
    Column("query", Text, nullable=False),
    Column("status", Text, nullable=False, server_default=text("'pending'")),
    # What it reads; fixed when it is asked.
    _count("revision"),
    _count("applied_position"),
    Column("text", Text, nullable=False, server_default=text("''")),
    Column("citations", JSONB, nullable=False, server_default=text("'[]'")),
    Column("model", Text, nullable=False, server_default=text("''")),
    Column("failure", Text, nullable=False, server_default=text("''")),
    Column("attempts", Integer, nullable=False, server_default=text("0")),
    Column("ready_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    _created(),
    # How the tree is to be navigated; NULL for other readers.
    Column("navigation", JSONB),
    # Why there is no answer, where there is none; NULL when there is one.
    Column("no_answer", Text),
    # What the navigation came to; NULL until it is complete, and for other readers.
    Column("statistics", JSONB),
    PrimaryKeyConstraint("session_key", "answer_id", name="answer_pkey"),
    ForeignKeyConstraint(
        ["session_key", "memory_id", "revision"],
        ["revision.session_key", "revision.memory_id", "revision.revision"],
        name="answer_revision_fkey",
    ),
    CheckConstraint("status IN ('pending', 'complete', 'failed')", name="answer_status"),
    Index("answer_runnable", "ready_at", postgresql_where=text("status = 'pending'")),
    Index("answer_by_memory", "session_key", "memory_id", "created_at", "answer_id"),
)

trajectory_event = Table(
    "trajectory_event",
    metadata,
    # What a navigation looked at and did, written as it happens.
    Column("session_key", Uuid, nullable=False),
    Column("answer_id", Uuid, nullable=False),
    Column("ordinal", Integer, nullable=False),
    Column("tenant_id", Uuid, nullable=False),
    # As `service.domain.tree.trajectory.Event`, without the ordinal.
    Column("event", JSONB, nullable=False),
    _created(),
    PrimaryKeyConstraint("session_key", "answer_id", "ordinal", name="trajectory_event_pkey"),
    ForeignKeyConstraint(
        ["session_key", "answer_id"],
        ["answer.session_key", "answer.answer_id"],
        name="trajectory_event_answer_fkey",
    ),
)

schema_draft = Table(
    "schema_draft",
    metadata,
    Column("session_key", Uuid, nullable=False),
    Column("draft_id", Uuid, nullable=False),
    Column("tenant_id", Uuid, nullable=False),
    Column("domain", Text, nullable=False),
    Column("example_query", Text, nullable=False),
    # The one that is asked for, empty for the default; then the one that wrote it.
    Column("model", Text, nullable=False),
    Column("status", Text, nullable=False, server_default=text("'pending'")),
    # Class source, once it is complete.
    Column("source", Text, nullable=False, server_default=text("''")),
    # Replies of the model that it took, once it is complete.
    Column("replies", Integer, nullable=False, server_default=text("0")),
    Column("failure", Text, nullable=False, server_default=text("''")),
    # Failed tries of the work, as with answers.
    Column("attempts", Integer, nullable=False, server_default=text("0")),
    Column("ready_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    _created(),
    PrimaryKeyConstraint("session_key", "draft_id", name="schema_draft_pkey"),
    ForeignKeyConstraint(
        ["session_key"], ["session.session_key"], name="schema_draft_session_fkey"
    ),
    CheckConstraint("status IN ('pending', 'complete', 'failed')", name="schema_draft_status"),
    Index("schema_draft_runnable", "ready_at", postgresql_where=text("status = 'pending'")),
)
