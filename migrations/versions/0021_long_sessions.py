"""Answers say which chunks their reader did not go through, and calls have sums by purpose.

The release before reads as much as there is, and says nothing of it; the trigger counts its
calls as well. What the sums lack of older calls is added part by part, and nobody waits
meanwhile. Every statement can run again.

Revision: 0021
After: 0020
"""

from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None

ANSWERS = """
ALTER TABLE answer ADD COLUMN IF NOT EXISTS left_out bigint[];
GRANT UPDATE (left_out) ON answer TO palimpsest_app
"""

#: Rows are updated over and over; with room in their pages no index is written for it.
SUMS = """
CREATE TABLE IF NOT EXISTS call_sum (
    session_key uuid NOT NULL,
    -- The memory, or the session for calls that no memory made.
    owner_id uuid NOT NULL,
    -- In UTC.
    day date NOT NULL,
    purpose text NOT NULL,
    model text NOT NULL,
    -- '' of calls that have none.
    residual text NOT NULL,
    failed boolean NOT NULL,
    tenant_id uuid NOT NULL,
    calls bigint NOT NULL,
    input_tokens bigint NOT NULL,
    predicted_cached_tokens bigint NOT NULL,
    reported_cached_tokens bigint NOT NULL,
    -- Calls whose provider says something of its cache.
    reported_calls bigint NOT NULL,
    -- As reported; where nothing is, as predicted.
    cached_tokens bigint NOT NULL,
    cache_write_tokens bigint NOT NULL,
    output_tokens bigint NOT NULL,
    cost_micro_usd bigint NOT NULL,
    -- Calls of models with a price.
    priced_calls bigint NOT NULL,
    CONSTRAINT call_sum_pkey PRIMARY KEY (
        session_key, owner_id, day, purpose, model, residual, failed),
    CONSTRAINT call_sum_session_fkey FOREIGN KEY (session_key, tenant_id)
        REFERENCES session (session_key, tenant_id)
) WITH (fillfactor = 80);
ALTER TABLE call_sum ENABLE ROW LEVEL SECURITY;
ALTER TABLE call_sum FORCE ROW LEVEL SECURITY;
DROP POLICY IF EXISTS call_sum_of_tenant ON call_sum;
CREATE POLICY call_sum_of_tenant ON call_sum TO palimpsest_app
    USING (tenant_id = current_setting('app.tenant')::uuid)
    WITH CHECK (tenant_id = current_setting('app.tenant')::uuid);
GRANT SELECT, INSERT, UPDATE ON call_sum TO palimpsest_app
"""

_KEYS = "session_key, owner_id, day, purpose, model, residual, failed"
_FIGURES = (
    "calls",
    "input_tokens",
    "predicted_cached_tokens",
    "reported_cached_tokens",
    "reported_calls",
    "cached_tokens",
    "cache_write_tokens",
    "output_tokens",
    "cost_micro_usd",
    "priced_calls",
)
_COLUMNS = f"{_KEYS}, tenant_id, {', '.join(_FIGURES)}"
_ADD = ", ".join(f"{name} = s.{name} + excluded.{name}" for name in _FIGURES)
_CALLS = """SELECT session_key, coalesce(memory_id, session_key) AS owner_id,
        (created_at AT TIME ZONE 'UTC')::date AS day, purpose, model,
        coalesce(residual, '') AS residual, reply IS NULL AS failed, tenant_id,
        count(*) AS calls, sum(input_tokens) AS input_tokens,
        sum(predicted_cached_tokens) AS predicted_cached_tokens,
        coalesce(sum(reported_cached_tokens), 0) AS reported_cached_tokens,
        count(reported_cached_tokens) AS reported_calls,
        sum(coalesce(reported_cached_tokens, predicted_cached_tokens)) AS cached_tokens,
        coalesce(sum(cache_write_tokens), 0) AS cache_write_tokens,
        sum(output_tokens) AS output_tokens,
        coalesce(sum(cost_micro_usd), 0) AS cost_micro_usd, count(cost_micro_usd) AS priced_calls
    FROM {made} GROUP BY 1, 2, 3, 4, 5, 6, 7, 8"""

#: Once a statement, not once a call; rows are locked in one order by all.
FUNCTION = f"""
CREATE OR REPLACE FUNCTION sum_calls() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO call_sum AS s ({_COLUMNS})
    SELECT {_COLUMNS} FROM ({_CALLS.format(made="made")}) c ORDER BY {_KEYS}
    ON CONFLICT ({_KEYS}) DO UPDATE SET {_ADD};
    RETURN NULL;
END $$
"""
TRIGGER = """
CREATE OR REPLACE TRIGGER call_sums AFTER INSERT ON call
    REFERENCING NEW TABLE AS made FOR EACH STATEMENT EXECUTE FUNCTION sum_calls()
"""

#: For what counts below: the owner has to see the rows of all tenants.
SHOW = """
DROP POLICY IF EXISTS {table}_counted ON {table};
CREATE POLICY {table}_counted ON {table} TO CURRENT_USER USING (true) WITH CHECK (true)
"""
HIDE = "DROP POLICY IF EXISTS {table}_counted ON {table}"

#: What is in `call` and not in the sums. From the trigger's birth both change together, so that
#: this stays the same until it is added.
LACKING = f"""
INSERT INTO call_sum AS s ({_COLUMNS})
SELECT {_KEYS}, tenant_id, {", ".join(f"sum({name})" for name in _FIGURES)}
FROM (
    {_CALLS.format(made="call WHERE session_key BETWEEN '{first}' AND '{last}'")}
    UNION ALL
    SELECT {_KEYS}, tenant_id, {", ".join(f"-{name}" for name in _FIGURES)}
    FROM call_sum WHERE session_key BETWEEN '{{first}}' AND '{{last}}'
) m
GROUP BY {_KEYS}, tenant_id
HAVING ({", ".join(f"sum({name})" for name in _FIGURES)})
    <> ({", ".join("0" for _ in _FIGURES)})
ORDER BY {_KEYS}
ON CONFLICT ({_KEYS}) DO UPDATE SET {_ADD}
"""
PARTS = 64


def upgrade() -> None:
    with op.get_context().autocommit_block():
        # Each for itself, for a moment: none of them keeps another waiting.
        op.execute(ANSWERS)
        op.execute(SUMS)
        op.execute(FUNCTION)
        op.execute(TRIGGER)
        for table in ("call", "call_sum"):
            op.execute(SHOW.format(table=table))
        for part in range(PARTS):
            first, last = part * 256 // PARTS, (part + 1) * 256 // PARTS - 1
            op.execute(
                LACKING.format(
                    first=f"{first:02x}000000-0000-0000-0000-000000000000",
                    last=f"{last:02x}ffffff-ffff-ffff-ffff-ffffffffffff",
                )
            )
        for table in ("call", "call_sum"):
            op.execute(HIDE.format(table=table))
