"""Running sums of what was spent, for budgets: one row to read, however much is in `spend`.

The release before goes on working: the trigger that adds its calls to `spend` adds them to the
sums as well. From the moment it does, `spend` and the sums change together, so that what the sums
lack stays the same until it is added, part by part, and nobody waits meanwhile. Every statement
can run again.

Revision: 0022
After: 0021
"""

from alembic import op
from sqlalchemy import text

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None

#: Rows are updated over and over; with room in their pages no index is written for it.
SUMS = """
CREATE TABLE IF NOT EXISTS spend_sum (
    session_key uuid NOT NULL,
    -- The memory, or the session for all that belongs to it: as in `budget`.
    owner_id uuid NOT NULL,
    tenant_id uuid NOT NULL,
    tokens bigint NOT NULL,
    micro_usd bigint NOT NULL,
    unpriced_calls bigint NOT NULL,
    -- The newest day that is known of, in UTC, and of it alone:
    day date NOT NULL,
    day_tokens bigint NOT NULL,
    day_micro_usd bigint NOT NULL,
    day_unpriced_calls bigint NOT NULL,
    CONSTRAINT spend_sum_pkey PRIMARY KEY (session_key, owner_id)
) WITH (fillfactor = 80);
CREATE TABLE IF NOT EXISTS tenant_spend_sum (
    tenant_id uuid NOT NULL,
    -- Connections that record calls at once do not wait for each other's row.
    slot smallint NOT NULL,
    tokens bigint NOT NULL,
    micro_usd bigint NOT NULL,
    unpriced_calls bigint NOT NULL,
    day date NOT NULL,
    day_tokens bigint NOT NULL,
    day_micro_usd bigint NOT NULL,
    day_unpriced_calls bigint NOT NULL,
    CONSTRAINT tenant_spend_sum_pkey PRIMARY KEY (tenant_id, slot)
) WITH (fillfactor = 50);
"""

_OF_TENANT = """
ALTER TABLE {table} ENABLE ROW LEVEL SECURITY;
ALTER TABLE {table} FORCE ROW LEVEL SECURITY;
DROP POLICY IF EXISTS {table}_of_tenant ON {table};
CREATE POLICY {table}_of_tenant ON {table} TO palimpsest_app
    USING (tenant_id = current_setting('app.tenant')::uuid)
    WITH CHECK (tenant_id = current_setting('app.tenant')::uuid);
GRANT SELECT, INSERT, UPDATE ON {table} TO palimpsest_app;
"""

_FIGURES = ("tokens", "micro_usd", "unpriced_calls")
_COLUMNS = ", ".join((*_FIGURES, "day", *(f"day_{name}" for name in _FIGURES)))

#: Adds to rows that are there. A day that is over is not gone back to.
_ADD = ",\n    ".join(
    (
        *(f"{name} = s.{name} + excluded.{name}" for name in _FIGURES),
        "day = greatest(s.day, excluded.day)",
        *(
            f"day_{name} = CASE WHEN s.day > excluded.day THEN s.day_{name}"
            f" WHEN s.day = excluded.day THEN s.day_{name} + excluded.day_{name}"
            f" ELSE excluded.day_{name} END"
            for name in _FIGURES
        ),
    )
)

#: Of calls that are written, the figures of one owner. A row has the figures of the newest day
#: alone, so nothing is said of the others.
_MADE = """sum(tokens), sum(micro_usd), sum(unpriced_calls), v_day,
    coalesce(sum(tokens) FILTER (WHERE day = v_day), 0),
    coalesce(sum(micro_usd) FILTER (WHERE day = v_day), 0),
    coalesce(sum(unpriced_calls) FILTER (WHERE day = v_day), 0)"""
_CALLS = """SELECT tenant_id, session_key, memory_id,
        (created_at AT TIME ZONE 'UTC')::date AS day, input_tokens + output_tokens AS tokens,
        coalesce(cost_micro_usd, 0) AS micro_usd,
        (reply IS NOT NULL AND cost_micro_usd IS NULL)::int AS unpriced_calls
    FROM made"""

#: Once a statement, not once a call; and rows are locked in one order by all, those of `spend`
#: before the sums and those of sessions before those of tenants.
FUNCTION = f"""
CREATE OR REPLACE FUNCTION count_spend() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    v_day date;
    v_slot smallint := mod(pg_backend_pid(), 16);
BEGIN
    SELECT max((created_at AT TIME ZONE 'UTC')::date) INTO v_day FROM made;
    IF v_day IS NULL THEN
        RETURN NULL;
    END IF;
    INSERT INTO spend AS s (
        session_key, owner_id, day, tenant_id, calls, failed_calls, input_tokens,
        predicted_cached_tokens, reported_cached_tokens, unreported_calls, cache_write_tokens,
        output_tokens, cost_micro_usd, unpriced_calls
    )
    SELECT session_key, coalesce(memory_id, session_key), (created_at AT TIME ZONE 'UTC')::date,
        tenant_id, count(reply), count(*) - count(reply), sum(input_tokens),
        sum(predicted_cached_tokens), coalesce(sum(reported_cached_tokens), 0),
        count(*) FILTER (WHERE reply IS NOT NULL AND reported_cached_tokens IS NULL),
        coalesce(sum(cache_write_tokens), 0), sum(output_tokens),
        coalesce(sum(cost_micro_usd), 0),
        count(*) FILTER (WHERE reply IS NOT NULL AND cost_micro_usd IS NULL)
    FROM made GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3
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
    INSERT INTO spend_sum AS s (session_key, owner_id, tenant_id, {_COLUMNS})
    SELECT session_key, o.owner_id, tenant_id, {_MADE}
    FROM ({_CALLS}) c
    CROSS JOIN LATERAL (VALUES (c.session_key), (c.memory_id)) AS o (owner_id)
    WHERE o.owner_id IS NOT NULL
    GROUP BY 1, 2, 3 ORDER BY 1, 2
    ON CONFLICT (session_key, owner_id) DO UPDATE SET
    {_ADD};
    INSERT INTO tenant_spend_sum AS s (tenant_id, slot, {_COLUMNS})
    SELECT tenant_id, v_slot, {_MADE}
    FROM ({_CALLS}) c GROUP BY 1 ORDER BY 1
    ON CONFLICT (tenant_id, slot) DO UPDATE SET
    {_ADD};
    RETURN NULL;
END $$;
"""

#: In one moment, with writers of calls before it or behind it.
TRIGGER = """
CREATE OR REPLACE TRIGGER call_spend AFTER INSERT ON call
    REFERENCING NEW TABLE AS made FOR EACH STATEMENT EXECUTE FUNCTION count_spend();
DROP FUNCTION IF EXISTS add_to_spend();
"""

#: For what counts below: the owner has to see the rows of all tenants.
SHOW = """
DROP POLICY IF EXISTS {table}_counted ON {table};
CREATE POLICY {table}_counted ON {table} TO CURRENT_USER USING (true) WITH CHECK (true);
"""
HIDE = "DROP POLICY IF EXISTS {table}_counted ON {table}"

#: What is in `spend` and not in the sums: in all, and of the newest day.
_LACKING = """
SELECT {keys}, sum(tokens) AS tokens, sum(micro_usd) AS micro_usd,
    sum(unpriced_calls) AS unpriced_calls, last AS day,
    coalesce(sum(day_tokens) FILTER (WHERE day = last), 0) AS day_tokens,
    coalesce(sum(day_micro_usd) FILTER (WHERE day = last), 0) AS day_micro_usd,
    coalesce(sum(day_unpriced_calls) FILTER (WHERE day = last), 0) AS day_unpriced_calls
FROM (
    SELECT m.*, max(day) OVER (PARTITION BY {keys}) AS last
    FROM (
        {spent}
        UNION ALL
        SELECT {keys}, day, -tokens, -micro_usd, -unpriced_calls,
            -day_tokens, -day_micro_usd, -day_unpriced_calls
        FROM {sums} {which}
    ) m
) d
GROUP BY {keys}, last
"""
_SPENT = """SELECT {keys}, day, sum(input_tokens + output_tokens) AS tokens,
            sum(cost_micro_usd) AS micro_usd, sum(unpriced_calls) AS unpriced_calls,
            sum(input_tokens + output_tokens) AS day_tokens,
            sum(cost_micro_usd) AS day_micro_usd, sum(unpriced_calls) AS day_unpriced_calls
        FROM spend {which} GROUP BY {by}"""
_OWNER = "session_key, owner_id, tenant_id"
_RANGE = "WHERE session_key BETWEEN '{first}' AND '{last}'"
_SPENT_BY_OWNER = (
    _SPENT.format(keys=_OWNER, which=_RANGE + " AND owner_id <> session_key", by="1, 2, 3, 4")
    + "\n        UNION ALL\n        "
    + _SPENT.format(keys="session_key, session_key, tenant_id", which=_RANGE, by="1, 2, 3, 4")
)
_NOTHING = f"""
WHERE ({", ".join(_FIGURES)}, {", ".join(f"day_{name}" for name in _FIGURES)})
    <> (0, 0, 0, 0, 0, 0)"""

#: In parts, so that a call that is recorded meanwhile does not wait for long.
OF_OWNERS = f"""
INSERT INTO spend_sum AS s ({_OWNER}, {_COLUMNS})
SELECT {_OWNER}, {_COLUMNS} FROM (
    {_LACKING.format(keys=_OWNER, spent=_SPENT_BY_OWNER, sums="spend_sum", which=_RANGE)}
) l {_NOTHING} ORDER BY session_key, owner_id
ON CONFLICT (session_key, owner_id) DO UPDATE SET
    {_ADD}
"""
PARTS = 64

_SPENT_BY_TENANT = _SPENT.format(keys="tenant_id", which="", by="1, 2")
OF_TENANTS = f"""
INSERT INTO tenant_spend_sum AS s (tenant_id, slot, {_COLUMNS})
SELECT tenant_id, 0, {_COLUMNS} FROM (
    {_LACKING.format(keys="tenant_id", spent=_SPENT_BY_TENANT, sums="tenant_spend_sum", which="")}
) l {_NOTHING} ORDER BY tenant_id
ON CONFLICT (tenant_id, slot) DO UPDATE SET
    {_ADD}
"""

#: For budgets that are raised: which memories they hold.
HELD = """
CREATE INDEX CONCURRENTLY memory_held ON memory (tenant_id, session_key)
WHERE held_reason IS NOT NULL
"""
IS_VALID = "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass('memory_held')"


def upgrade() -> None:
    with op.get_context().autocommit_block():
        # Each for itself, for a moment: none of them keeps another waiting.
        op.execute(SUMS)
        for table in ("spend_sum", "tenant_spend_sum"):
            op.execute(_OF_TENANT.format(table=table))
        op.execute(FUNCTION)
    op.execute(TRIGGER)
    counted = ("spend", "spend_sum", "tenant_spend_sum")
    with op.get_context().autocommit_block():
        for table in counted:
            op.execute(SHOW.format(table=table))
        for part in range(PARTS):
            first, last = part * 256 // PARTS, (part + 1) * 256 // PARTS - 1
            op.execute(
                OF_OWNERS.format(
                    first=f"{first:02x}000000-0000-0000-0000-000000000000",
                    last=f"{last:02x}ffffff-ffff-ffff-ffff-ffffffffffff",
                )
            )
        op.execute(OF_TENANTS)
        for table in counted:
            op.execute(HIDE.format(table=table))
        # This takes its time and blocks nobody, so it may also wait for its lock.
        op.execute("SET lock_timeout = 0")
        if not op.get_bind().execute(text(IS_VALID)).scalar():
            # One that was interrupted is there, and invalid.
            op.execute("DROP INDEX CONCURRENTLY IF EXISTS memory_held")
            op.execute(HELD)
        op.execute("SET lock_timeout = '5s'")
