-- The queue of workers. The tables of memories, answers, schema drafts, sessions and removals say
-- what there is to do; these say which worker has it in hand, and which memories clients wait for.
--
-- None of it is worth a write-ahead log: a crash of the server empties the three tables, and
-- workers fill them again.

-- A worker process, and when it last said that it lives.
CREATE UNLOGGED TABLE worker (
    worker_id uuid PRIMARY KEY,
    beat_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
GRANT SELECT, INSERT, UPDATE, DELETE ON worker TO palimpsest_sweeper;


-- What a worker has in hand: no other takes it meanwhile.
CREATE UNLOGGED TABLE claim (
    session_key uuid NOT NULL,
    item_id uuid NOT NULL,
    -- One of service/domain/values/work_items.py.
    kind text NOT NULL,
    worker_id uuid NOT NULL,
    claimed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (session_key, item_id, kind)
);
GRANT SELECT, INSERT, DELETE ON claim TO palimpsest_sweeper;

-- Whether a worker has an item in hand, of which the caller must know the keys: the table itself is
-- read in no tenant's name, since its rows have no tenant.
CREATE FUNCTION is_claimed(p_session uuid, p_item uuid, p_kind text) RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT EXISTS (
        SELECT FROM claim
        WHERE session_key = p_session AND item_id = p_item AND kind = p_kind
    )
$$;


-- Memories that a client waits for, and since when.
CREATE UNLOGGED TABLE wanted (
    session_key uuid NOT NULL,
    memory_id uuid NOT NULL,
    tenant_id uuid NOT NULL,
    wanted_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (session_key, memory_id)
);
CREATE INDEX wanted_turns ON wanted (tenant_id, wanted_at);
ALTER TABLE wanted ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY wanted_swept ON wanted TO palimpsest_sweeper USING (true) WITH CHECK (true);
GRANT SELECT, INSERT, DELETE ON wanted TO palimpsest_sweeper;

-- Takes work for a worker. p_lanes are looked at in their order, up to p_quotas items of each,
-- p_bound of those of p_bounded together, and p_total of all. In a lane the tenants have turns,
-- from the one after p_after on: one item each, then what is left. A lane's last row has no item,
-- and says where it ended: kind 'more' before it had looked at every tenant.
--
-- A lock lets one worker take at a time: two would take the same, and one of them nothing.
--
-- One plan of each statement is any good, whatever statistics say: a plan that was made while
-- nothing was to do must not read all of a backlog. So the others are turned off. Every index of a
-- lane has a condition that is so of each row: that it is ready after -infinity. It keeps the index
-- to the statements that repeat it: statistics of when nothing had work promise any other statement
-- that the index is empty, and one that has the key of a memory would read it whole.
CREATE FUNCTION take_work(
    p_worker uuid, p_lanes text[], p_quotas integer[], p_after uuid[], p_total integer,
    p_bounded text[], p_bound integer, p_recent_seconds double precision, p_tenants integer,
    OUT lane text, OUT kind text, OUT tenant_id uuid, OUT session_key uuid, OUT item_id uuid
) RETURNS SETOF record LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET enable_incremental_sort = off SET enable_hashjoin = off SET enable_mergejoin = off
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    v_nobody CONSTANT uuid := '00000000-0000-0000-0000-000000000000';
    v_now timestamptz;
    v_left integer := p_total;
    v_bound integer := p_bound;
    v_need integer;
    v_each integer;
    v_got integer;
    v_came integer;
    v_looks integer;
    v_tenant uuid;
    v_next uuid;
    v_around boolean;
BEGIN
    PERFORM pg_advisory_xact_lock(1885432933);
    v_now := clock_timestamp();
    FOR i IN 1 .. cardinality(p_lanes) LOOP
        EXIT WHEN v_left = 0;
        v_need := least(p_quotas[i], v_left);
        IF p_lanes[i] = ANY (p_bounded) THEN
            v_need := least(v_need, v_bound);
        END IF;
        CONTINUE WHEN v_need = 0;
        v_tenant := p_after[i];
        v_came := 0;
        v_looks := 0;
        lane := p_lanes[i];
        kind := 'all';
        <<rounds>>
        FOR round IN 1 .. 2 LOOP
            EXIT WHEN v_need = 0;
            v_each := CASE round WHEN 1 THEN 1 ELSE v_need END;
            v_tenant := p_after[i];
            v_around := v_tenant = v_nobody;
            LOOP
                CASE lane
                    WHEN 'wanted' THEN
                        SELECT r.tenant_id INTO v_next FROM wanted r
                        WHERE r.tenant_id > v_tenant ORDER BY r.tenant_id LIMIT 1;
                    WHEN 'answers' THEN
                        SELECT r.tenant_id INTO v_next FROM answer r
                        WHERE r.status = 'pending' AND r.ready_at > '-infinity'
                            AND r.tenant_id > v_tenant ORDER BY r.tenant_id LIMIT 1;
                    WHEN 'schemas' THEN
                        SELECT r.tenant_id INTO v_next FROM schema_draft r
                        WHERE r.status = 'pending' AND r.ready_at > '-infinity'
                            AND r.tenant_id > v_tenant ORDER BY r.tenant_id LIMIT 1;
                    WHEN 'recent' THEN
                        SELECT r.tenant_id INTO v_next FROM memory r
                        WHERE r.has_work AND r.status = 'active' AND r.ready_at > '-infinity'
                            AND r.tenant_id > v_tenant ORDER BY r.tenant_id LIMIT 1;
                    WHEN 'backlog' THEN
                        SELECT r.tenant_id INTO v_next FROM memory r
                        WHERE r.has_work AND r.status = 'active' AND r.ready_at > '-infinity'
                            AND r.tenant_id > v_tenant ORDER BY r.tenant_id LIMIT 1;
                    WHEN 'index' THEN
                        SELECT r.tenant_id INTO v_next FROM session r
                        WHERE r.has_unindexed AND r.index_ready_at > '-infinity'
                            AND r.tenant_id > v_tenant ORDER BY r.tenant_id LIMIT 1;
                    WHEN 'removals' THEN
                        SELECT r.tenant_id INTO v_next FROM removal r
                        WHERE r.ready_at > '-infinity'
                            AND r.tenant_id > v_tenant ORDER BY r.tenant_id LIMIT 1;
                END CASE;
                IF v_next IS NULL THEN
                    EXIT WHEN v_around;
                    v_around := true;
                    v_tenant := v_nobody;
                    CONTINUE;
                END IF;
                EXIT WHEN v_around AND p_after[i] <> v_nobody AND v_next > p_after[i];
                v_tenant := v_next;
                CASE lane
                    WHEN 'wanted' THEN
                        RETURN QUERY
                        INSERT INTO claim AS c (session_key, item_id, kind, worker_id)
                        SELECT r.session_key, r.memory_id, 'memory', p_worker FROM wanted r
                        WHERE r.tenant_id = v_next
                            AND EXISTS (
                                SELECT FROM (
                                    SELECT has_work, status, ready_at FROM memory
                                    WHERE session_key = r.session_key AND memory_id = r.memory_id
                                    OFFSET 0
                                ) AS m
                                WHERE m.has_work AND m.status = 'active' AND m.ready_at <= v_now
                            )
                            AND NOT EXISTS (SELECT FROM claim held
                                WHERE held.session_key = r.session_key
                                    AND held.item_id = r.memory_id AND held.kind = 'memory')
                        ORDER BY r.wanted_at LIMIT least(v_each, v_need)
                        ON CONFLICT DO NOTHING
                        RETURNING 'wanted', c.kind, v_next, c.session_key, c.item_id;
                    WHEN 'answers' THEN
                        RETURN QUERY
                        INSERT INTO claim AS c (session_key, item_id, kind, worker_id)
                        SELECT r.session_key, r.answer_id, 'answer', p_worker FROM answer r
                        WHERE r.status = 'pending' AND r.ready_at > '-infinity'
                            AND r.tenant_id = v_next AND r.ready_at <= v_now
                            AND NOT EXISTS (SELECT FROM claim held
                                WHERE held.session_key = r.session_key
                                    AND held.item_id = r.answer_id AND held.kind = 'answer')
                        ORDER BY r.ready_at LIMIT least(v_each, v_need)
                        ON CONFLICT DO NOTHING
                        RETURNING 'answers', c.kind, v_next, c.session_key, c.item_id;
                    WHEN 'schemas' THEN
                        RETURN QUERY
                        INSERT INTO claim AS c (session_key, item_id, kind, worker_id)
                        SELECT r.session_key, r.draft_id, 'schema', p_worker FROM schema_draft r
                        WHERE r.status = 'pending' AND r.ready_at > '-infinity'
                            AND r.tenant_id = v_next AND r.ready_at <= v_now
                            AND NOT EXISTS (SELECT FROM claim held
                                WHERE held.session_key = r.session_key
                                    AND held.item_id = r.draft_id AND held.kind = 'schema')
                        ORDER BY r.ready_at LIMIT least(v_each, v_need)
                        ON CONFLICT DO NOTHING
                        RETURNING 'schemas', c.kind, v_next, c.session_key, c.item_id;
                    WHEN 'recent' THEN
                        RETURN QUERY
                        INSERT INTO claim AS c (session_key, item_id, kind, worker_id)
                        SELECT r.session_key, r.memory_id, 'memory', p_worker FROM memory r
                        WHERE r.has_work AND r.status = 'active' AND r.ready_at > '-infinity'
                            AND r.tenant_id = v_next AND r.ready_at <= v_now
                            AND r.ready_at > v_now - make_interval(secs => p_recent_seconds)
                            AND NOT EXISTS (SELECT FROM claim held
                                WHERE held.session_key = r.session_key
                                    AND held.item_id = r.memory_id AND held.kind = 'memory')
                        ORDER BY r.ready_at DESC LIMIT least(v_each, v_need)
                        ON CONFLICT DO NOTHING
                        RETURNING 'recent', c.kind, v_next, c.session_key, c.item_id;
                    WHEN 'backlog' THEN
                        RETURN QUERY
                        INSERT INTO claim AS c (session_key, item_id, kind, worker_id)
                        SELECT r.session_key, r.memory_id, 'memory', p_worker FROM memory r
                        WHERE r.has_work AND r.status = 'active' AND r.ready_at > '-infinity'
                            AND r.tenant_id = v_next AND r.ready_at <= v_now
                            AND NOT EXISTS (SELECT FROM claim held
                                WHERE held.session_key = r.session_key
                                    AND held.item_id = r.memory_id AND held.kind = 'memory')
                        ORDER BY r.ready_at LIMIT least(v_each, v_need)
                        ON CONFLICT DO NOTHING
                        RETURNING 'backlog', c.kind, v_next, c.session_key, c.item_id;
                    WHEN 'index' THEN
                        RETURN QUERY
                        INSERT INTO claim AS c (session_key, item_id, kind, worker_id)
                        SELECT r.session_key, r.session_key, 'index', p_worker FROM session r
                        WHERE r.has_unindexed AND r.index_ready_at > '-infinity'
                            AND r.tenant_id = v_next AND r.index_ready_at <= v_now
                            AND NOT EXISTS (SELECT FROM claim held
                                WHERE held.session_key = r.session_key
                                    AND held.item_id = r.session_key AND held.kind = 'index')
                        ORDER BY r.index_ready_at LIMIT least(v_each, v_need)
                        ON CONFLICT DO NOTHING
                        RETURNING 'index', c.kind, v_next, c.session_key, c.item_id;
                    WHEN 'removals' THEN
                        RETURN QUERY
                        INSERT INTO claim AS c (session_key, item_id, kind, worker_id)
                        SELECT r.session_key, r.item_id, 'removal', p_worker FROM removal r
                        WHERE r.ready_at > '-infinity'
                            AND r.tenant_id = v_next AND r.ready_at <= v_now
                            AND NOT EXISTS (SELECT FROM claim held
                                WHERE held.session_key = r.session_key
                                    AND held.item_id = r.item_id AND held.kind = 'removal')
                        ORDER BY r.ready_at LIMIT least(v_each, v_need)
                        ON CONFLICT DO NOTHING
                        RETURNING 'removals', c.kind, v_next, c.session_key, c.item_id;
                END CASE;
                GET DIAGNOSTICS v_got = ROW_COUNT;
                v_need := v_need - v_got;
                v_left := v_left - v_got;
                v_came := v_came + v_got;
                EXIT rounds WHEN v_need = 0;
                v_looks := v_looks + 1;
                IF v_looks >= p_tenants THEN
                    kind := 'more';
                    EXIT rounds;
                END IF;
            END LOOP;
            EXIT WHEN v_came = 0;
        END LOOP;
        IF lane = ANY (p_bounded) THEN
            v_bound := v_bound - v_came;
        END IF;
        tenant_id := v_tenant;
        RETURN NEXT;
    END LOOP;
END
$$;
REVOKE ALL ON FUNCTION take_work FROM public;
GRANT EXECUTE ON FUNCTION take_work TO palimpsest_sweeper;
