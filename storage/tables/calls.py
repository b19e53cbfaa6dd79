"""Tables of model calls, their sums, and budgets."""

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

from storage.tables.common import count, created, ids, metadata, of_memory, of_session, views

call = Table(
    "call",
    metadata,
    # The ledger, which also replays a reply instead of paying again.
    *ids("session_key", "call_id", "tenant_id"),
    # NULL for calls that no memory made; then the foreign key does not apply.
    Column("memory_id", Uuid),
    # In the order of its bytes, so that a range finds all with one prefix.
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
    # Which deployment of the model was called; empty where there is only one.
    Column("deployment", Text, nullable=False, server_default=text("''")),
    # Why the provider's cache had other tokens than predicted.
    Column("residual", Text),
    # A part of output_tokens; NULL is unknown.
    Column("reasoning_tokens", BigInteger),
    # How the reply ended; NULL for a failed call, and for one of a release that did not store it.
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
    # Calls that have a text, for retention.
    Index(
        "call_with_text",
        "session_key",
        "created_at",
        postgresql_where=text("octet_length(COALESCE(reply, failure)) > 0"),
    ),
)


intent = Table(
    "intent",
    metadata,
    # A call that is about to be made or under way: it exists from before the call until its outcome
    # is stored. An executor that finds one with a valid lease waits for that outcome.
    *ids("session_key", "tenant_id"),
    Column("key", LargeBinary, nullable=False),
    Column("memory_id", Uuid),
    Column("purpose", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("deployment", Text, nullable=False, server_default=text("''")),
    # The fencing token: rises when another executor takes over the call.
    Column("fence", BigInteger, nullable=False, server_default=text("1")),
    Column("lease_until", DateTime(timezone=True), nullable=False),
    # The call's largest size, for budgets.
    count("reserved_tokens"),
    count("reserved_micro_usd"),
    created(),
    PrimaryKeyConstraint("session_key", "key", name="intent_pkey"),
    # It has no foreign keys; the call and its sum, which stay, have them.
    # For budgets. Its condition is true of each row, as that of `call_sum_by_tenant`.
    Index("intent_of_tenant", "tenant_id", postgresql_where=text("created_at > '-infinity'")),
)


call_sum = Table(
    "call_sum",
    metadata,
    # The ledger's sums by day and purpose. A trigger of `call` writes them, and those of budgets,
    # so that they equal the ledger whatever writes there.
    *ids("session_key", "tenant_id"),
    # The memory, or the session for calls that no memory made.
    Column("owner_id", Uuid, nullable=False),
    # In UTC.
    Column("day", Date, nullable=False),
    Column("purpose", Text, nullable=False),
    Column("model", Text, nullable=False),
    # Empty for calls without one.
    Column("residual", Text, nullable=False),
    Column("failed", Boolean, nullable=False),
    count("calls"),
    count("input_tokens"),
    count("predicted_cached_tokens"),
    count("reported_cached_tokens"),
    # Calls whose provider reports on its cache.
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
        # True of each row; only statements that repeat it use this index.
        postgresql_where=text("day > '-infinity'"),
    ),
)


spend = Table(
    "spend",
    views,
    # The ledger's sums by day: a view of `call_sum`, with as many rows.
    *ids("session_key", "tenant_id"),
    # The memory, or the session for calls that no memory made.
    Column("owner_id", Uuid, nullable=False),
    # In UTC.
    Column("day", Date, nullable=False),
    count("calls"),
    count("failed_calls"),
    count("input_tokens"),
    count("predicted_cached_tokens"),
    count("reported_cached_tokens"),
    # Calls whose provider reports nothing of its cache.
    count("unreported_calls"),
    count("cache_write_tokens"),
    count("output_tokens"),
    count("cost_micro_usd"),
    # Calls of models without a price.
    count("unpriced_calls"),
)


def _sums() -> tuple[Column[Any], ...]:
    """Returns the columns of sums for budgets: totals, and those of the newest day, in UTC."""
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
    # The total of a memory, or of a session, in one row: budgets are checked before each call. It
    # has no foreign key, since its sources have.
    *ids("session_key", "tenant_id"),
    # As in `budget`.
    Column("owner_id", Uuid, nullable=False),
    *_sums(),
    PrimaryKeyConstraint("session_key", "owner_id", name="spend_sum_pkey"),
)


tenant_spend_sum = Table(
    "tenant_spend_sum",
    metadata,
    # The same of a tenant: the sum of its rows. Each connection adds to the row of its slot, so
    # that concurrent calls do not wait for each other.
    Column("tenant_id", Uuid, nullable=False),
    Column("slot", SmallInteger, nullable=False),
    *_sums(),
    PrimaryKeyConstraint("tenant_id", "slot", name="tenant_spend_sum_pkey"),
)


budget = Table(
    "budget",
    metadata,
    # What a memory, or all of a session, may spend.
    *ids("session_key", "tenant_id"),
    # The memory, or the session for all that belongs to it.
    Column("owner_id", Uuid, nullable=False),
    Column("period", Text, nullable=False),
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
