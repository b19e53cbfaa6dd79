"""Tables of work: answers with their parts, schema drafts, operations, and the queue.

Those of the queue are unlogged, so that they need no flush: a crash of the server empties them, and
workers fill them again.
"""

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
    PrimaryKeyConstraint,
    Table,
    Text,
    Uuid,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

from storage.tables.common import (
    count,
    created,
    ids,
    metadata,
    of_revision,
    of_session,
    of_waiting,
    total,
)

answer = Table(
    "answer",
    metadata,
    *ids("session_key", "answer_id", "tenant_id"),
    # NULL: the log is read, or the automatic reader has not chosen.
    Column("memory_id", Uuid),
    Column("query", Text, nullable=False),
    Column("status", Text, nullable=False, server_default=text("'pending'")),
    # What it reads; fixed when the question is stored.
    count("revision"),
    count("applied_position"),
    Column("text", Text, nullable=False, server_default=text("''")),
    Column("citations", JSONB, nullable=False, server_default=text("'[]'")),
    Column("model", Text, nullable=False, server_default=text("''")),
    Column("failure", Text, nullable=False, server_default=text("''")),
    # Whether it failed because a budget does not allow a call.
    Column("over_budget", Boolean, nullable=False, server_default=text("false")),
    Column("attempts", Integer, nullable=False, server_default=text("0")),
    Column("ready_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    created(),
    # How the tree is to be navigated; NULL for other readers.
    Column("navigation", JSONB),
    # Why there is no answer, where there is none; NULL when there is one.
    Column("no_answer", Text),
    # Totals of the navigation; NULL until it is complete, and for other readers.
    Column("statistics", JSONB),
    # NULL: the default reader of that kind of memory.
    Column("reader", Text),
    # How the log is to be browsed; NULL for other readers.
    Column("browsing", JSONB),
    # The model where no memory's spec names one; empty: the service's.
    Column("wanted_model", Text, nullable=False, server_default=text("''")),
    # JSON Schema of the answer, and the answer in this form; NULL where none is requested.
    Column("response_schema", JSONB),
    Column("value", JSONB),
    # The choice of the automatic reader: reader, memory, revision and position, and reason.
    Column("chosen", JSONB),
    # Which chunks may be cited, and are read where the log is read; NULL: all.
    Column("chunk_filter", JSONB),
    # The options of a multiple-choice question.
    Column("options", JSONB, nullable=False, server_default=text("'[]'")),
    # Whether the answer is an option without support, and whether its text was cut off.
    Column("guessed", Boolean, nullable=False, server_default=text("false")),
    Column("truncated", Boolean, nullable=False, server_default=text("false")),
    # The first and the last chunk that the reader left out; NULL: none.
    Column("left_out", ARRAY(BigInteger)),
    # Whether the text is streamed.
    Column("tells_text", Boolean, nullable=False, server_default=text("false")),
    # A memory that the automatic reader chooses must have applied the log up to here.
    total("wanted_position"),
    # The model whose condition it waits for, and why; NULL: it waits for none.
    Column("waiting_model", Text),
    Column("waiting_cause", Text),
    # Until when it is made without a waiting client; NULL: for ever.
    Column("wanted_until", DateTime(timezone=True)),
    # The server process whose client began to wait last; NULL: all clients left, or it is made in
    # any case.
    Column("waiter", Uuid),
    PrimaryKeyConstraint("session_key", "answer_id", name="answer_pkey"),
    of_revision("answer_revision_fkey"),
    CheckConstraint(
        "status IN ('pending', 'complete', 'failed', 'cancelled', 'abandoned')",
        name="answer_status",
    ),
    Index(
        "answer_turns",
        "tenant_id",
        "ready_at",
        postgresql_where=text("status = 'pending' AND ready_at > '-infinity'"),
    ),
    # For the limit of pending answers: see `count_pending_answer`.
    Index(
        "answer_pending",
        "tenant_id",
        "answer_id",
        postgresql_where=text(
            "status = 'pending' AND (waiter IS NOT NULL OR wanted_until IS NULL)"
        ),
    ),
    of_waiting("answer_waiting"),
    Index("answer_by_memory", "session_key", "memory_id", "created_at", "answer_id"),
    Index("answer_by_session", "session_key", "created_at", "answer_id"),
)


def _of_answer(name: str) -> ForeignKeyConstraint:
    return ForeignKeyConstraint(
        ["session_key", "answer_id"], ["answer.session_key", "answer.answer_id"], name=name
    )


answer_text = Table(
    "answer_text",
    metadata,
    # The text of an answer in pieces, while a model writes it. `answer` has the whole.
    *ids("session_key", "answer_id", "tenant_id"),
    Column("ordinal", Integer, nullable=False),
    Column("text", Text, nullable=False),
    # Earlier pieces are void: the text begins anew with this one.
    Column("restarts", Boolean, nullable=False),
    created(),
    PrimaryKeyConstraint("session_key", "answer_id", "ordinal", name="answer_text_pkey"),
    _of_answer("answer_text_answer_fkey"),
)


answer_rating = Table(
    "answer_rating",
    metadata,
    # The rating of an answer; the last one counts.
    *ids("session_key", "answer_id", "tenant_id"),
    # 1: good; -1: bad.
    Column("rating", Integer, nullable=False),
    Column("comment", Text, nullable=False),
    # The right answer; empty when it is not given.
    Column("expected", Text, nullable=False),
    Column("rated_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    PrimaryKeyConstraint("session_key", "answer_id", name="answer_rating_pkey"),
    _of_answer("answer_rating_answer_fkey"),
    CheckConstraint("rating IN (-1, 1)", name="answer_rating_rating"),
)


trajectory_event = Table(
    "trajectory_event",
    metadata,
    # What a reader read and did, written as it happens.
    *ids("session_key", "answer_id", "tenant_id"),
    Column("ordinal", Integer, nullable=False),
    # As `service.domain.answers.trajectory.Event`, without the ordinal.
    Column("event", JSONB, nullable=False),
    created(),
    PrimaryKeyConstraint("session_key", "answer_id", "ordinal", name="trajectory_event_pkey"),
    _of_answer("trajectory_event_answer_fkey"),
)


schema_draft = Table(
    "schema_draft",
    metadata,
    *ids("session_key", "draft_id", "tenant_id"),
    Column("domain", Text, nullable=False),
    Column("example_query", Text, nullable=False),
    # The requested one, empty for the default; then the one that wrote it.
    Column("model", Text, nullable=False),
    Column("status", Text, nullable=False, server_default=text("'pending'")),
    # Class source, once it is complete.
    Column("source", Text, nullable=False, server_default=text("''")),
    # Replies of the model that it needed, once it is complete.
    Column("replies", Integer, nullable=False, server_default=text("0")),
    Column("failure", Text, nullable=False, server_default=text("''")),
    # Failed tries of the work, as with answers.
    Column("attempts", Integer, nullable=False, server_default=text("0")),
    Column("ready_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    created(),
    # The model whose condition it waits for, and why; NULL: it waits for none.
    Column("waiting_model", Text),
    Column("waiting_cause", Text),
    PrimaryKeyConstraint("session_key", "draft_id", name="schema_draft_pkey"),
    of_session("schema_draft_session_fkey"),
    CheckConstraint("status IN ('pending', 'complete', 'failed')", name="schema_draft_status"),
    Index(
        "schema_draft_turns",
        "tenant_id",
        "ready_at",
        postgresql_where=text("status = 'pending' AND ready_at > '-infinity'"),
    ),
    Index(
        "schema_draft_pending",
        "tenant_id",
        "draft_id",
        postgresql_where=text("status = 'pending'"),
    ),
    of_waiting("schema_draft_waiting"),
)


def _now(name: str) -> Column[object]:
    return Column(
        name, DateTime(timezone=True), nullable=False, server_default=func.clock_timestamp()
    )


worker = Table(
    "worker",
    metadata,
    Column("worker_id", Uuid, primary_key=True),
    # When it last reported that it is alive.
    _now("beat_at"),
    prefixes=["UNLOGGED"],
)


claim = Table(
    "claim",
    metadata,
    *ids("session_key", "item_id"),
    # One of service/domain/values/work_items.py.
    Column("kind", Text, nullable=False),
    Column("worker_id", Uuid, nullable=False),
    _now("claimed_at"),
    PrimaryKeyConstraint("session_key", "item_id", "kind", name="claim_pkey"),
    prefixes=["UNLOGGED"],
)


wanted = Table(
    "wanted",
    metadata,
    *ids("session_key", "memory_id", "tenant_id"),
    # Since when a client waits for it.
    _now("wanted_at"),
    PrimaryKeyConstraint("session_key", "memory_id", name="wanted_pkey"),
    Index("wanted_turns", "tenant_id", "wanted_at"),
    prefixes=["UNLOGGED"],
)


tenant_turn = Table(
    "tenant_turn",
    metadata,
    # The turns of a tenant in the queue. The row of no tenant, with an id of zeros, has the clock.
    Column("tenant_id", Uuid, primary_key=True),
    # The time of workers' slots that was charged to it; the least is next.
    Column("total_seconds", Double, nullable=False),
    # What an item of it took lately.
    Column("item_seconds", Double, nullable=False),
    # Where it is in the cycle of work classes.
    Column("entry", Integer, nullable=False),
    prefixes=["UNLOGGED"],
)


operation = Table(
    "operation",
    metadata,
    *ids("session_key", "tenant_id"),
    # For a schema, the id of its draft.
    Column("operation_id", Uuid, nullable=False),
    Column("kind", Text, nullable=False),
    # What it changes or builds; NULL and empty for a schema.
    Column("memory_id", Uuid),
    Column("memory_name", Text, nullable=False),
    # Everything up to here is to be read; 0 for a schema.
    Column("goal", BigInteger, nullable=False),
    # How it ended, as it was first reported; NULL before.
    Column("state", Text),
    # Why it failed: reason, message and metadata.
    Column("error", JSONB),
    Column("ended_at", DateTime(timezone=True)),
    created(),
    PrimaryKeyConstraint("session_key", "operation_id", name="operation_pkey"),
    of_session("operation_session_fkey", ondelete="CASCADE"),
    CheckConstraint(
        "kind IN ('rebuild', 'consolidation', 'schema', 'seal', 'redaction')",
        name="operation_kind",
    ),
    CheckConstraint("state IN ('done', 'failed', 'cancelled')", name="operation_state"),
    CheckConstraint(
        "(kind IN ('schema', 'redaction')) = (memory_id IS NULL)", name="operation_memory"
    ),
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
