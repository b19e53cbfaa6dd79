"""Model calls, what they came to, and what they may come to."""

from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Date,
    DateTime,
    ForeignKeyConstraint,
    Index,
    LargeBinary,
    PrimaryKeyConstraint,
    SmallInteger,
    Table,
    Text,
    Uuid,
    text,
)

from storage.tables.common import count, created, metadata, of_memory, of_session, views

call = Table(
    "call",
    metadata,
    # The ledger, which also replays a reply instead of paying again.
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
    count("input_tokens"),
    count("predicted_cached_tokens"),
    Column("reported_cached_tokens", BigInteger),
    Column("cache_write_tokens", BigInteger),
    count("output_tokens"),
    Column("cost_micro_usd", BigInteger),
    count("latency_ms"),
    created(),
    # Which deployment of the model was asked; empty where there is one only.
    Column("deployment", Text, nullable=False, server_default=text("''")),
    # Why the provider's cache had other tokens than predicted.
    Column("residual", Text),
    # Of output_tokens; NULL is unknown.
    Column("reasoning_tokens", BigInteger),
    # How the reply ended; NULL for a failed call, and for one of a release that did not say it.
    Column("ended", Text),
    # The words of a refusal, or the provider's own name of the end.
    Column("said", Text),
    of_memory("call_memory_fkey"),
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
    count("reserved_tokens"),
    count("reserved_micro_usd"),
    created(),
    PrimaryKeyConstraint("session_key", "key", name="intent_pkey"),
    # It has no foreign key: what stays, the call and its sum, has them.
    # For budgets. What it says is so of each, as of `call_sum_by_tenant`.
    Index("intent_of_tenant", "tenant_id", postgresql_where=text("created_at > '-infinity'")),
)


call_sum = Table(
    "call_sum",
    metadata,
    # The ledger's sums by day and by what calls are for. A trigger of `call` writes them, and
    # those of budgets, so that they are what is in the ledger whoever writes there.
    Column("session_key", Uuid, nullable=False),
    # The memory, or the session for calls that no memory made.
    Column("owner_id", Uuid, nullable=False),
    # In UTC.
    Column("day", Date, nullable=False),
    Column("purpose", Text, nullable=False),
    Column("model", Text, nullable=False),
    # Empty of calls that have none.
    Column("residual", Text, nullable=False),
    Column("failed", Boolean, nullable=False),
    Column("tenant_id", Uuid, nullable=False),
    count("calls"),
    count("input_tokens"),
    count("predicted_cached_tokens"),
    count("reported_cached_tokens"),
    # Calls whose provider says something of its cache.
    count("reported_calls"),
    # As reported; where nothing is, as predicted.
    count("cached_tokens"),
    count("cache_write_tokens"),
    count("output_tokens"),
    count("cost_micro_usd"),
    # Calls of models with a price.
    count("priced_calls"),
    PrimaryKeyConstraint(
        "session_key",
        "owner_id",
        "day",
        "purpose",
        "model",
        "residual",
        "failed",
        name="call_sum_pkey",
    ),
    of_session("call_sum_session_fkey"),
    Index(
        "call_sum_by_tenant",
        "tenant_id",
        "day",
        # It is so of each row, and keeps this index to the statements that repeat it.
        postgresql_where=text("day > '-infinity'"),
    ),
)


spend = Table(
    "spend",
    views,
    # The ledger's sums by day, out of `call_sum`: a view, of as many rows as that has.
    Column("session_key", Uuid, nullable=False),
    # The memory, or the session for calls that no memory made.
    Column("owner_id", Uuid, nullable=False),
    # In UTC.
    Column("day", Date, nullable=False),
    Column("tenant_id", Uuid, nullable=False),
    count("calls"),
    count("failed_calls"),
    count("input_tokens"),
    count("predicted_cached_tokens"),
    count("reported_cached_tokens"),
    # Calls whose provider says nothing of its cache.
    count("unreported_calls"),
    count("cache_write_tokens"),
    count("output_tokens"),
    count("cost_micro_usd"),
    # Calls of models without a price.
    count("unpriced_calls"),
)


def _sums() -> tuple[Column[Any], ...]:
    """What budgets are about: in all, and of the newest day that is known of, in UTC."""
    return (
        count("tokens"),
        count("micro_usd"),
        count("unpriced_calls"),
        Column("day", Date, nullable=False),
        count("day_tokens"),
        count("day_micro_usd"),
        count("day_unpriced_calls"),
    )


spend_sum = Table(
    "spend_sum",
    metadata,
    # What is in `spend` of a memory, or of all that belongs to a session, in one row: a budget
    # is looked at before each call. It has no foreign key: it is made of what has one.
    Column("session_key", Uuid, nullable=False),
    # As in `budget`.
    Column("owner_id", Uuid, nullable=False),
    Column("tenant_id", Uuid, nullable=False),
    *_sums(),
    PrimaryKeyConstraint("session_key", "owner_id", name="spend_sum_pkey"),
)


tenant_spend_sum = Table(
    "tenant_spend_sum",
    metadata,
    # The same of a tenant: the sum of its rows. Each connection adds to the one of its slot, so
    # that calls that are recorded at once do not wait for each other.
    Column("tenant_id", Uuid, nullable=False),
    Column("slot", SmallInteger, nullable=False),
    *_sums(),
    PrimaryKeyConstraint("tenant_id", "slot", name="tenant_spend_sum_pkey"),
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
    of_session("budget_session_fkey"),
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
