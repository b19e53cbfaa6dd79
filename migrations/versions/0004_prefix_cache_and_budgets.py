"""Folding by price, call intents with leases, sums of what was spent, and budgets.

The release before goes on working: it leaves the new columns at their defaults, and a
trigger adds its calls to the sums as well. Every statement can run again.

Revision: 0004
After: 0003
"""

from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

OF_MEMORIES = """
ALTER TABLE memory
    -- What the folding policy has counted since the last fold.
    ADD COLUMN IF NOT EXISTS fold_state jsonb,
    -- Why no call may be made now: a budget is used up.
    ADD COLUMN IF NOT EXISTS held_reason text;
GRANT UPDATE (fold_state, held_reason) ON memory TO palimpsest_app;
"""

OF_CALLS = """
ALTER TABLE call
    -- Which deployment of the model was asked; '' where there is one only.
    ADD COLUMN IF NOT EXISTS deployment text NOT NULL DEFAULT '',
    -- Why the provider's cache had other tokens than predicted.
    ADD COLUMN IF NOT EXISTS residual text;
-- For what counts them below: the owner has to see the calls of all tenants.
DROP POLICY IF EXISTS call_counted ON call;
CREATE POLICY call_counted ON call FOR SELECT TO CURRENT_USER USING (true);
"""

#: An intent is there from before a call until its outcome is stored.
INTENTS = """
CREATE TABLE IF NOT EXISTS intent (
    session_key uuid NOT NULL CONSTRAINT intent_session_fkey REFERENCES session,
    key bytea NOT NULL,
    tenant_id uuid NOT NULL,
    memory_id uuid,
    purpose text NOT NULL,
    model text NOT NULL,
    deployment text NOT NULL DEFAULT '',
    fence bigint NOT NULL DEFAULT 1,
    lease_until timestamptz NOT NULL,
    reserved_tokens bigint NOT NULL,
    reserved_micro_usd bigint NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (session_key, key),
    CONSTRAINT intent_memory_fkey FOREIGN KEY (session_key, memory_id)
        REFERENCES memory (session_key, memory_id)
);
CREATE INDEX IF NOT EXISTS intent_by_tenant ON intent (tenant_id);
"""

SPEND = """
CREATE TABLE IF NOT EXISTS spend (
    session_key uuid NOT NULL CONSTRAINT spend_session_fkey REFERENCES session,
    -- The memory, or the session for calls that no memory made.
    owner_id uuid NOT NULL,
    -- In UTC.
    day date NOT NULL,
    tenant_id uuid NOT NULL,
    calls bigint NOT NULL DEFAULT 0,
    failed_calls bigint NOT NULL DEFAULT 0,
    input_tokens bigint NOT NULL DEFAULT 0,
    predicted_cached_tokens bigint NOT NULL DEFAULT 0,
    reported_cached_tokens bigint NOT NULL DEFAULT 0,
    -- Calls whose provider says nothing of its cache.
    unreported_calls bigint NOT NULL DEFAULT 0,
    cache_write_tokens bigint NOT NULL DEFAULT 0,
    output_tokens bigint NOT NULL DEFAULT 0,
    cost_micro_usd bigint NOT NULL DEFAULT 0,
    -- Calls of models without a price.
    unpriced_calls bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (session_key, owner_id, day)
);
CREATE INDEX IF NOT EXISTS spend_by_tenant ON spend (tenant_id, day);

CREATE OR REPLACE FUNCTION add_to_spend() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO spend AS s (
        session_key, owner_id, day, tenant_id, calls, failed_calls, input_tokens,
        predicted_cached_tokens, reported_cached_tokens, unreported_calls, cache_write_tokens,
        output_tokens, cost_micro_usd, unpriced_calls
    )
    VALUES (
        NEW.session_key, coalesce(NEW.memory_id, NEW.session_key),
        (NEW.created_at AT TIME ZONE 'UTC')::date, NEW.tenant_id,
        (NEW.reply IS NOT NULL)::int, (NEW.reply IS NULL)::int, NEW.input_tokens,
        NEW.predicted_cached_tokens, coalesce(NEW.reported_cached_tokens, 0),
        (NEW.reply IS NOT NULL AND NEW.reported_cached_tokens IS NULL)::int,
        coalesce(NEW.cache_write_tokens, 0), NEW.output_tokens, coalesce(NEW.cost_micro_usd, 0),
        (NEW.reply IS NOT NULL AND NEW.cost_micro_usd IS NULL)::int
    )
    ON CONFLICT (session_key, owner_id, day) DO UPDATE SET
        calls = s.calls + excluded.calls,
        failed_calls = s.failed_calls + excluded.failed_calls,
        input_tokens = s.input_tokens + excluded.input_tokens,
        predicted_cached_tokens = s.predicted_cached_tokens + excluded.predicted_cached_tokens,
        reported_cached_tokens = s.reported_cached_tokens + excluded.reported_cached_tokens,
        unreported_calls = s.unreported_calls + excluded.unreported_calls,
        cache_write_tokens = s.cache_write_tokens + excluded.cache_write_tokens,
        output_tokens = s.output_tokens + excluded.output_tokens,
        cost_micro_usd = s.cost_micro_usd + excluded.cost_micro_usd,
        unpriced_calls = s.unpriced_calls + excluded.unpriced_calls;
    RETURN NULL;
END $$;
"""

#: In one transaction with the trigger's birth, which waits for writers of calls and keeps
#: them waiting: each call is counted by the one or by the other. Readers go on.
HISTORY = """
LOCK TABLE call IN SHARE ROW EXCLUSIVE MODE;
-- The owner has to write the rows of all tenants, here only.
ALTER TABLE spend NO FORCE ROW LEVEL SECURITY;
DELETE FROM spend;
INSERT INTO spend (
    session_key, owner_id, day, tenant_id, calls, failed_calls, input_tokens,
    predicted_cached_tokens, reported_cached_tokens, unreported_calls, cache_write_tokens,
    output_tokens, cost_micro_usd, unpriced_calls
)
SELECT
    session_key, coalesce(memory_id, session_key), (created_at AT TIME ZONE 'UTC')::date,
    tenant_id, count(reply), count(failure), sum(input_tokens), sum(predicted_cached_tokens),
    coalesce(sum(reported_cached_tokens), 0),
    count(*) FILTER (WHERE reply IS NOT NULL AND reported_cached_tokens IS NULL),
    coalesce(sum(cache_write_tokens), 0), sum(output_tokens), coalesce(sum(cost_micro_usd), 0),
    count(*) FILTER (WHERE reply IS NOT NULL AND cost_micro_usd IS NULL)
FROM call GROUP BY 1, 2, 3, 4;
ALTER TABLE spend FORCE ROW LEVEL SECURITY;
CREATE OR REPLACE TRIGGER call_spend AFTER INSERT ON call
    FOR EACH ROW EXECUTE FUNCTION add_to_spend();
"""

BUDGETS = """
CREATE TABLE IF NOT EXISTS budget (
    session_key uuid NOT NULL CONSTRAINT budget_session_fkey REFERENCES session,
    -- The memory, or the session for all that belongs to it.
    owner_id uuid NOT NULL,
    period text NOT NULL CONSTRAINT budget_period CHECK (period IN ('day', 'total')),
    tenant_id uuid NOT NULL,
    limit_tokens bigint CONSTRAINT budget_tokens CHECK (limit_tokens >= 0),
    limit_micro_usd bigint CONSTRAINT budget_micro_usd CHECK (limit_micro_usd >= 0),
    PRIMARY KEY (session_key, owner_id, period)
);
CREATE TABLE IF NOT EXISTS tenant_budget (
    tenant_id uuid NOT NULL CONSTRAINT tenant_budget_tenant_fkey REFERENCES tenant,
    period text NOT NULL CONSTRAINT tenant_budget_period CHECK (period IN ('day', 'total')),
    limit_tokens bigint CONSTRAINT tenant_budget_tokens CHECK (limit_tokens >= 0),
    limit_micro_usd bigint CONSTRAINT tenant_budget_micro_usd CHECK (limit_micro_usd >= 0),
    PRIMARY KEY (tenant_id, period)
);
"""

_OF_TENANT = """
ALTER TABLE {table} ENABLE ROW LEVEL SECURITY;
ALTER TABLE {table} FORCE ROW LEVEL SECURITY;
DROP POLICY IF EXISTS {table}_of_tenant ON {table};
CREATE POLICY {table}_of_tenant ON {table} TO palimpsest_app
    USING (tenant_id = current_setting('app.tenant')::uuid)
    WITH CHECK (tenant_id = current_setting('app.tenant')::uuid);
GRANT {rights} ON {table} TO palimpsest_app;
"""


def upgrade() -> None:
    with op.get_context().autocommit_block():
        # Each for itself, for a moment: whoever writes a call locks calls and then
        # memories, and none of this may wait for the counting below.
        op.execute(OF_MEMORIES)
        op.execute(OF_CALLS)
        op.execute(INTENTS)
        op.execute(SPEND)
        op.execute(BUDGETS)
        for table, rights in (
            ("intent", "SELECT, INSERT, UPDATE, DELETE"),
            ("spend", "SELECT, INSERT, UPDATE"),
            ("budget", "SELECT, INSERT, UPDATE, DELETE"),
            ("tenant_budget", "SELECT, INSERT, UPDATE, DELETE"),
        ):
            op.execute(_OF_TENANT.format(table=table, rights=rights))
    op.execute(HISTORY)
    with op.get_context().autocommit_block():
        op.execute("DROP POLICY IF EXISTS call_counted ON call")
