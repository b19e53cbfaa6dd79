-- What was spent, and what may be. Triggers of `call` write the sums, so that they are what is in
-- the ledger, whichever process writes there.

-- The ledger's sums by day and by what calls are for. Rows are updated over and over; with room on
-- their pages no index is written for it.
CREATE TABLE call_sum (
    session_key uuid NOT NULL,
    -- The memory, or the session for calls that no memory made.
    owner_id uuid NOT NULL,
    -- In UTC.
    day date NOT NULL,
    purpose text NOT NULL,
    model text NOT NULL,
    -- Empty of calls that have none.
    residual text NOT NULL,
    failed boolean NOT NULL,
    tenant_id uuid NOT NULL,
    calls bigint NOT NULL,
    input_tokens bigint NOT NULL,
    predicted_cached_tokens bigint NOT NULL,
    reported_cached_tokens bigint NOT NULL,
    -- Calls whose provider reports its cache.
    reported_calls bigint NOT NULL,
    -- As reported; where nothing is, as predicted.
    cached_tokens bigint NOT NULL,
    cache_write_tokens bigint NOT NULL,
    output_tokens bigint NOT NULL,
    cost_micro_usd bigint NOT NULL,
    -- Calls of models with a price.
    priced_calls bigint NOT NULL,
    PRIMARY KEY (session_key, owner_id, day, purpose, model, residual, failed),
    CONSTRAINT call_sum_session_fkey FOREIGN KEY (session_key, tenant_id)
        REFERENCES session (session_key, tenant_id)
) WITH (fillfactor = 90);
-- For statements about all of a tenant. The condition is so of each row: as of
-- session_of_tenant_by_bytes.
CREATE INDEX call_sum_by_tenant ON call_sum (tenant_id, day) WHERE day > '-infinity';
ALTER TABLE call_sum ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY call_sum_of_tenant ON call_sum TO palimpsest_app
    USING (tenant_id = current_setting('app.tenant')::uuid)
    WITH CHECK (tenant_id = current_setting('app.tenant')::uuid);
CREATE POLICY call_sum_removed ON call_sum
    AS RESTRICTIVE FOR DELETE TO palimpsest_app
    USING (session_key IN (SELECT session_key FROM removal));
GRANT SELECT, INSERT, UPDATE, DELETE ON call_sum TO palimpsest_app;


-- The ledger's sums by day. Row-level security is that of the reader. A row for each row of the
-- sums: all that read it sum up.
CREATE VIEW spend WITH (security_invoker = true) AS
SELECT session_key, owner_id, day, tenant_id,
    CASE WHEN failed THEN 0 ELSE calls END AS calls,
    CASE WHEN failed THEN calls ELSE 0 END AS failed_calls,
    input_tokens, predicted_cached_tokens, reported_cached_tokens,
    CASE WHEN failed THEN 0 ELSE calls - reported_calls END AS unreported_calls,
    cache_write_tokens, output_tokens, cost_micro_usd,
    CASE WHEN failed THEN 0 ELSE calls - priced_calls END AS unpriced_calls
FROM call_sum;
GRANT SELECT ON spend TO palimpsest_app;


-- What a memory, or all that belongs to a session, spent, in one row: a budget is checked before
-- each call, however long the ledger is. It has no foreign key: it is made of what has one.
CREATE TABLE spend_sum (
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
    PRIMARY KEY (session_key, owner_id)
) WITH (fillfactor = 90);
ALTER TABLE spend_sum ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY spend_sum_of_tenant ON spend_sum TO palimpsest_app
    USING (tenant_id = current_setting('app.tenant')::uuid)
    WITH CHECK (tenant_id = current_setting('app.tenant')::uuid);
CREATE POLICY spend_sum_removed ON spend_sum
    AS RESTRICTIVE FOR DELETE TO palimpsest_app
    USING (session_key IN (SELECT session_key FROM removal));
GRANT SELECT, INSERT, UPDATE, DELETE ON spend_sum TO palimpsest_app;


-- The same of a tenant: the sum of its rows.
CREATE TABLE tenant_spend_sum (
    tenant_id uuid NOT NULL,
    -- Each connection adds to the row of its slot, so that calls that are recorded at once do not
    -- wait for each other.
    slot smallint NOT NULL,
    tokens bigint NOT NULL,
    micro_usd bigint NOT NULL,
    unpriced_calls bigint NOT NULL,
    day date NOT NULL,
    day_tokens bigint NOT NULL,
    day_micro_usd bigint NOT NULL,
    day_unpriced_calls bigint NOT NULL,
    PRIMARY KEY (tenant_id, slot)
) WITH (fillfactor = 90);
ALTER TABLE tenant_spend_sum ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant_spend_sum_of_tenant ON tenant_spend_sum TO palimpsest_app
    USING (tenant_id = current_setting('app.tenant')::uuid)
    WITH CHECK (tenant_id = current_setting('app.tenant')::uuid);
GRANT SELECT, INSERT, UPDATE ON tenant_spend_sum TO palimpsest_app;


-- What a memory, or all of a session, may spend.
CREATE TABLE budget (
    session_key uuid NOT NULL,
    -- The memory, or the session for all that belongs to it.
    owner_id uuid NOT NULL,
    period text NOT NULL CONSTRAINT budget_period CHECK (period IN ('day', 'total')),
    tenant_id uuid NOT NULL,
    limit_tokens bigint CONSTRAINT budget_tokens CHECK (limit_tokens >= 0),
    limit_micro_usd bigint CONSTRAINT budget_micro_usd CHECK (limit_micro_usd >= 0),
    PRIMARY KEY (session_key, owner_id, period),
    CONSTRAINT budget_session_fkey FOREIGN KEY (session_key, tenant_id)
        REFERENCES session (session_key, tenant_id)
);
ALTER TABLE budget ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY budget_of_tenant ON budget TO palimpsest_app
    USING (tenant_id = current_setting('app.tenant')::uuid)
    WITH CHECK (tenant_id = current_setting('app.tenant')::uuid);
GRANT SELECT, INSERT, UPDATE, DELETE ON budget TO palimpsest_app;


CREATE TABLE tenant_budget (
    tenant_id uuid NOT NULL CONSTRAINT tenant_budget_tenant_fkey REFERENCES tenant,
    period text NOT NULL CONSTRAINT tenant_budget_period CHECK (period IN ('day', 'total')),
    limit_tokens bigint CONSTRAINT tenant_budget_tokens CHECK (limit_tokens >= 0),
    limit_micro_usd bigint CONSTRAINT tenant_budget_micro_usd CHECK (limit_micro_usd >= 0),
    PRIMARY KEY (tenant_id, period)
);
ALTER TABLE tenant_budget ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant_budget_of_tenant ON tenant_budget TO palimpsest_app
    USING (tenant_id = current_setting('app.tenant')::uuid)
    WITH CHECK (tenant_id = current_setting('app.tenant')::uuid);
GRANT SELECT, INSERT, UPDATE, DELETE ON tenant_budget TO palimpsest_app;


-- The two triggers run once a statement, not once a call. All of them lock rows in one order, those
-- of sessions before those of tenants. Sums that are there are added to by an UPDATE: an INSERT
-- that finds its row locks it first, which the write-ahead log has as well. What is planned while a
-- table is empty has to be good for later, so no plan reads a whole table.

-- What budgets are checked against. A row has the figures of the newest day alone: a day that is
-- over is not gone back to.
CREATE FUNCTION count_spend() RETURNS trigger LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    v_day date;
    v_slot smallint := mod(pg_backend_pid(), 16);
    w record;
BEGIN
    SELECT max((created_at AT TIME ZONE 'UTC')::date) INTO v_day FROM made;
    IF v_day IS NULL THEN
        RETURN NULL;
    END IF;
    FOR w IN
        SELECT session_key, o.owner_id, tenant_id,
            sum(tokens)::bigint AS tokens, sum(micro_usd)::bigint AS micro_usd,
            sum(unpriced_calls)::bigint AS unpriced_calls, v_day AS day,
            coalesce(sum(tokens) FILTER (WHERE day = v_day), 0)::bigint AS day_tokens,
            coalesce(sum(micro_usd) FILTER (WHERE day = v_day), 0)::bigint AS day_micro_usd,
            coalesce(sum(unpriced_calls) FILTER (WHERE day = v_day), 0)::bigint
                AS day_unpriced_calls
        FROM (
            SELECT tenant_id, session_key, memory_id,
                (created_at AT TIME ZONE 'UTC')::date AS day,
                input_tokens + output_tokens AS tokens, coalesce(cost_micro_usd, 0) AS micro_usd,
                (reply IS NOT NULL AND cost_micro_usd IS NULL)::int AS unpriced_calls
            FROM made
        ) c
        CROSS JOIN LATERAL (VALUES (c.session_key), (c.memory_id)) AS o (owner_id)
        WHERE o.owner_id IS NOT NULL
        GROUP BY 1, 2, 3 ORDER BY 1, 2
    LOOP
        UPDATE spend_sum s SET
            tokens = s.tokens + w.tokens,
            micro_usd = s.micro_usd + w.micro_usd,
            unpriced_calls = s.unpriced_calls + w.unpriced_calls,
            day = greatest(s.day, w.day),
            day_tokens = CASE
                WHEN s.day > w.day THEN s.day_tokens
                WHEN s.day = w.day THEN s.day_tokens + w.day_tokens
                ELSE w.day_tokens
            END,
            day_micro_usd = CASE
                WHEN s.day > w.day THEN s.day_micro_usd
                WHEN s.day = w.day THEN s.day_micro_usd + w.day_micro_usd
                ELSE w.day_micro_usd
            END,
            day_unpriced_calls = CASE
                WHEN s.day > w.day THEN s.day_unpriced_calls
                WHEN s.day = w.day THEN s.day_unpriced_calls + w.day_unpriced_calls
                ELSE w.day_unpriced_calls
            END
        WHERE s.session_key = w.session_key AND s.owner_id = w.owner_id;
        CONTINUE WHEN FOUND;
        INSERT INTO spend_sum AS s (
            session_key, owner_id, tenant_id, tokens, micro_usd, unpriced_calls, day, day_tokens,
            day_micro_usd, day_unpriced_calls
        ) VALUES (
            w.session_key, w.owner_id, w.tenant_id, w.tokens, w.micro_usd, w.unpriced_calls,
            w.day, w.day_tokens, w.day_micro_usd, w.day_unpriced_calls
        )
        ON CONFLICT (session_key, owner_id) DO UPDATE SET
            tokens = s.tokens + excluded.tokens,
            micro_usd = s.micro_usd + excluded.micro_usd,
            unpriced_calls = s.unpriced_calls + excluded.unpriced_calls,
            day = greatest(s.day, excluded.day),
            day_tokens = CASE
                WHEN s.day > excluded.day THEN s.day_tokens
                WHEN s.day = excluded.day THEN s.day_tokens + excluded.day_tokens
                ELSE excluded.day_tokens
            END,
            day_micro_usd = CASE
                WHEN s.day > excluded.day THEN s.day_micro_usd
                WHEN s.day = excluded.day THEN s.day_micro_usd + excluded.day_micro_usd
                ELSE excluded.day_micro_usd
            END,
            day_unpriced_calls = CASE
                WHEN s.day > excluded.day THEN s.day_unpriced_calls
                WHEN s.day = excluded.day THEN s.day_unpriced_calls + excluded.day_unpriced_calls
                ELSE excluded.day_unpriced_calls
            END;
    END LOOP;
    FOR w IN
        SELECT tenant_id, v_slot AS slot,
            sum(tokens)::bigint AS tokens, sum(micro_usd)::bigint AS micro_usd,
            sum(unpriced_calls)::bigint AS unpriced_calls, v_day AS day,
            coalesce(sum(tokens) FILTER (WHERE day = v_day), 0)::bigint AS day_tokens,
            coalesce(sum(micro_usd) FILTER (WHERE day = v_day), 0)::bigint AS day_micro_usd,
            coalesce(sum(unpriced_calls) FILTER (WHERE day = v_day), 0)::bigint
                AS day_unpriced_calls
        FROM (
            SELECT tenant_id, session_key, memory_id,
                (created_at AT TIME ZONE 'UTC')::date AS day,
                input_tokens + output_tokens AS tokens, coalesce(cost_micro_usd, 0) AS micro_usd,
                (reply IS NOT NULL AND cost_micro_usd IS NULL)::int AS unpriced_calls
            FROM made
        ) c
        GROUP BY 1 ORDER BY 1
    LOOP
        UPDATE tenant_spend_sum s SET
            tokens = s.tokens + w.tokens,
            micro_usd = s.micro_usd + w.micro_usd,
            unpriced_calls = s.unpriced_calls + w.unpriced_calls,
            day = greatest(s.day, w.day),
            day_tokens = CASE
                WHEN s.day > w.day THEN s.day_tokens
                WHEN s.day = w.day THEN s.day_tokens + w.day_tokens
                ELSE w.day_tokens
            END,
            day_micro_usd = CASE
                WHEN s.day > w.day THEN s.day_micro_usd
                WHEN s.day = w.day THEN s.day_micro_usd + w.day_micro_usd
                ELSE w.day_micro_usd
            END,
            day_unpriced_calls = CASE
                WHEN s.day > w.day THEN s.day_unpriced_calls
                WHEN s.day = w.day THEN s.day_unpriced_calls + w.day_unpriced_calls
                ELSE w.day_unpriced_calls
            END
        WHERE s.tenant_id = w.tenant_id AND s.slot = w.slot;
        CONTINUE WHEN FOUND;
        INSERT INTO tenant_spend_sum AS s (
            tenant_id, slot, tokens, micro_usd, unpriced_calls, day, day_tokens, day_micro_usd,
            day_unpriced_calls
        ) VALUES (
            w.tenant_id, w.slot, w.tokens, w.micro_usd, w.unpriced_calls, w.day, w.day_tokens,
            w.day_micro_usd, w.day_unpriced_calls
        )
        ON CONFLICT (tenant_id, slot) DO UPDATE SET
            tokens = s.tokens + excluded.tokens,
            micro_usd = s.micro_usd + excluded.micro_usd,
            unpriced_calls = s.unpriced_calls + excluded.unpriced_calls,
            day = greatest(s.day, excluded.day),
            day_tokens = CASE
                WHEN s.day > excluded.day THEN s.day_tokens
                WHEN s.day = excluded.day THEN s.day_tokens + excluded.day_tokens
                ELSE excluded.day_tokens
            END,
            day_micro_usd = CASE
                WHEN s.day > excluded.day THEN s.day_micro_usd
                WHEN s.day = excluded.day THEN s.day_micro_usd + excluded.day_micro_usd
                ELSE excluded.day_micro_usd
            END,
            day_unpriced_calls = CASE
                WHEN s.day > excluded.day THEN s.day_unpriced_calls
                WHEN s.day = excluded.day THEN s.day_unpriced_calls + excluded.day_unpriced_calls
                ELSE excluded.day_unpriced_calls
            END;
    END LOOP;
    RETURN NULL;
END $$;
CREATE TRIGGER call_spend AFTER INSERT ON call
    REFERENCING NEW TABLE AS made FOR EACH STATEMENT EXECUTE FUNCTION count_spend();

CREATE FUNCTION sum_calls() RETURNS trigger LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    w record;
BEGIN
    FOR w IN
        SELECT session_key, coalesce(memory_id, session_key) AS owner_id,
            (created_at AT TIME ZONE 'UTC')::date AS day, purpose, model,
            coalesce(residual, '') AS residual, reply IS NULL AS failed, tenant_id,
            count(*) AS calls, sum(input_tokens) AS input_tokens,
            sum(predicted_cached_tokens) AS predicted_cached_tokens,
            coalesce(sum(reported_cached_tokens), 0) AS reported_cached_tokens,
            count(reported_cached_tokens) AS reported_calls,
            sum(coalesce(reported_cached_tokens, predicted_cached_tokens)) AS cached_tokens,
            coalesce(sum(cache_write_tokens), 0) AS cache_write_tokens,
            sum(output_tokens) AS output_tokens,
            coalesce(sum(cost_micro_usd), 0) AS cost_micro_usd,
            count(cost_micro_usd) AS priced_calls
        FROM made
        GROUP BY 1, 2, 3, 4, 5, 6, 7, 8
        ORDER BY session_key, owner_id, day, purpose, model, residual, failed
    LOOP
        UPDATE call_sum s SET
            calls = s.calls + w.calls,
            input_tokens = s.input_tokens + w.input_tokens,
            predicted_cached_tokens = s.predicted_cached_tokens + w.predicted_cached_tokens,
            reported_cached_tokens = s.reported_cached_tokens + w.reported_cached_tokens,
            reported_calls = s.reported_calls + w.reported_calls,
            cached_tokens = s.cached_tokens + w.cached_tokens,
            cache_write_tokens = s.cache_write_tokens + w.cache_write_tokens,
            output_tokens = s.output_tokens + w.output_tokens,
            cost_micro_usd = s.cost_micro_usd + w.cost_micro_usd,
            priced_calls = s.priced_calls + w.priced_calls
        WHERE s.session_key = w.session_key AND s.owner_id = w.owner_id AND s.day = w.day
            AND s.purpose = w.purpose AND s.model = w.model AND s.residual = w.residual
            AND s.failed = w.failed;
        CONTINUE WHEN FOUND;
        INSERT INTO call_sum AS s (
            session_key, owner_id, day, purpose, model, residual, failed, tenant_id, calls,
            input_tokens, predicted_cached_tokens, reported_cached_tokens, reported_calls,
            cached_tokens, cache_write_tokens, output_tokens, cost_micro_usd, priced_calls
        ) VALUES (
            w.session_key, w.owner_id, w.day, w.purpose, w.model, w.residual, w.failed,
            w.tenant_id, w.calls, w.input_tokens, w.predicted_cached_tokens,
            w.reported_cached_tokens, w.reported_calls, w.cached_tokens, w.cache_write_tokens,
            w.output_tokens, w.cost_micro_usd, w.priced_calls
        )
        ON CONFLICT (session_key, owner_id, day, purpose, model, residual, failed) DO UPDATE SET
            calls = s.calls + excluded.calls,
            input_tokens = s.input_tokens + excluded.input_tokens,
            predicted_cached_tokens = s.predicted_cached_tokens + excluded.predicted_cached_tokens,
            reported_cached_tokens = s.reported_cached_tokens + excluded.reported_cached_tokens,
            reported_calls = s.reported_calls + excluded.reported_calls,
            cached_tokens = s.cached_tokens + excluded.cached_tokens,
            cache_write_tokens = s.cache_write_tokens + excluded.cache_write_tokens,
            output_tokens = s.output_tokens + excluded.output_tokens,
            cost_micro_usd = s.cost_micro_usd + excluded.cost_micro_usd,
            priced_calls = s.priced_calls + excluded.priced_calls;
    END LOOP;
    RETURN NULL;
END $$;
CREATE TRIGGER call_sums AFTER INSERT ON call
    REFERENCING NEW TABLE AS made FOR EACH STATEMENT EXECUTE FUNCTION sum_calls();
