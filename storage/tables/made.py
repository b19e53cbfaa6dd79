"""What is asked for and made by a worker: answers and schema drafts."""

from sqlalchemy import (
    CheckConstraint,
    Column,
    DateTime,
    ForeignKeyConstraint,
    Index,
    Integer,
    PrimaryKeyConstraint,
    Table,
    Text,
    Uuid,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

from storage.tables.common import count, created, metadata

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
    count("revision"),
    count("applied_position"),
    Column("text", Text, nullable=False, server_default=text("''")),
    Column("citations", JSONB, nullable=False, server_default=text("'[]'")),
    Column("model", Text, nullable=False, server_default=text("''")),
    Column("failure", Text, nullable=False, server_default=text("''")),
    Column("attempts", Integer, nullable=False, server_default=text("0")),
    Column("ready_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    created(),
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
    # As `service.domain.trajectory.Event`, without the ordinal.
    Column("event", JSONB, nullable=False),
    created(),
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
    created(),
    PrimaryKeyConstraint("session_key", "draft_id", name="schema_draft_pkey"),
    ForeignKeyConstraint(
        ["session_key"], ["session.session_key"], name="schema_draft_session_fkey"
    ),
    CheckConstraint("status IN ('pending', 'complete', 'failed')", name="schema_draft_status"),
    Index("schema_draft_runnable", "ready_at", postgresql_where=text("status = 'pending'")),
)
