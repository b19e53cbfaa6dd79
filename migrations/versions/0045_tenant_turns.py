"""Turns of tenants in the queue, by expected cost.

`claim_work` replaces `take_work`, which stays for the workers of the release before. Both wait for
the same lock.

Revision: 0045
After: 0044
"""

from alembic import op

revision = "0045"
down_revision = "0044"
branch_labels = None
depends_on = None

#: Work classes in the order of their bits in a mask. For each the kind of its items, the table that
#: has them, the column of their id, which of them are ready, and which goes first.
_READY = "r.ready_at > '-infinity' AND r.tenant_id = v_tenant AND r.ready_at <= v_now"
_PENDING = f"r.status = 'pending' AND {_READY}"
_MEMORY = f"r.has_work AND r.status = 'active' AND {_READY}"
_RECENT = f"{_MEMORY} AND r.ready_at > v_now - make_interval(secs => p_recent_seconds)"
_WANTED = """r.tenant_id = v_tenant AND EXISTS (
        SELECT FROM (
            SELECT has_work, status, ready_at FROM memory
            WHERE session_key = r.session_key AND memory_id = r.memory_id OFFSET 0
        ) AS m
        WHERE m.has_work AND m.status = 'active' AND m.ready_at <= v_now)"""
_INDEX = (
    "r.has_unindexed AND r.index_ready_at > '-infinity' AND r.tenant_id = v_tenant"
    " AND r.index_ready_at <= v_now"
)
_CLASSES = {
    "wanted": ("memory", "wanted", "memory_id", _WANTED, "r.wanted_at"),
    "answers": ("answer", "answer", "answer_id", _PENDING, "r.ready_at"),
    "schemas": ("schema", "schema_draft", "draft_id", _PENDING, "r.ready_at"),
    "recent": ("memory", "memory", "memory_id", _RECENT, "r.ready_at DESC"),
    "backlog": ("memory", "memory", "memory_id", _MEMORY, "r.ready_at"),
    "index": ("index", "session", "session_key", _INDEX, "r.index_ready_at"),
    "removals": ("removal", "removal", "item_id", _READY, "r.ready_at"),
}


def _items(name: str) -> str:
    """Returns the clauses that find the ready items of a class that no worker has claimed."""
    kind, table, item, ready, _ = _CLASSES[name]
    return f"""FROM {table} r
        WHERE {ready}
            AND NOT EXISTS (SELECT FROM claim held
                WHERE held.session_key = r.session_key
                    AND held.item_id = r.{item} AND held.kind = '{kind}')"""


def _claim(name: str) -> str:
    kind, _, item, _, first = _CLASSES[name]
    return f"""
    WHEN '{name}' THEN
        RETURN QUERY
        INSERT INTO claim AS c (session_key, item_id, kind, worker_id)
        SELECT r.session_key, r.{item}, '{kind}', p_worker {_items(name)}
        ORDER BY {first} LIMIT 1
        ON CONFLICT DO NOTHING
        RETURNING '{name}', c.kind, v_tenant, c.session_key, c.item_id, v_cost;"""


#: Rows of each table that may be ready, by the condition of its index.
_SOME = {
    "wanted": "true",
    "answer": "r.status = 'pending' AND r.ready_at > '-infinity'",
    "schema_draft": "r.status = 'pending' AND r.ready_at > '-infinity'",
    "memory": "r.has_work AND r.status = 'active' AND r.ready_at > '-infinity'",
    "session": "r.has_unindexed AND r.index_ready_at > '-infinity'",
    "removal": "r.ready_at > '-infinity'",
}


def _after(table: str, tenant: str) -> str:
    """Returns an expression: the next tenant of which the table has such rows, or NULL."""
    return (
        f"(SELECT r.tenant_id FROM {table} r WHERE {_SOME[table]} AND r.tenant_id > {tenant}"
        " ORDER BY r.tenant_id LIMIT 1)"
    )


_AFTER_IN_ONE = "\n".join(
    f"WHEN {number} THEN {_after(table, 'ring.id')}" for number, table in enumerate(_SOME, start=1)
)
_AFTER_IN_ALL = ",\n".join(_after(table, "v_tenant") for table in _SOME)


def _mask() -> str:
    """Returns an expression: the classes in which the tenant has no row, as bits."""
    return " + ".join(
        f"(NOT EXISTS (SELECT FROM {table} r WHERE {_SOME[table]}"
        f" AND r.tenant_id = v_tenant))::integer * {1 << bit}"
        for bit, (_, table, *_) in enumerate(_CLASSES.values())
    )


#: One plan of each statement is any good, whatever statistics say: see `take_work`.
_PLANS = """
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET enable_incremental_sort = off SET enable_hashjoin = off SET enable_mergejoin = off
SET jit = off
"""
_NAMES = "ARRAY[" + ", ".join(f"'{name}'" for name in _CLASSES) + "]"

# Claims work for a worker: up to p_total items, p_bound of those of the classes p_bounded together.
# Tenants take turns by virtual time, in seconds of a worker's slot: each item is charged to its
# tenant when it is claimed, with what the tenant's items took lately, and the tenant with the least
# total is next, the first one after p_after of several. So a tenant with few items never waits for
# more than one item of each other tenant. A tenant without work saves nothing up: it starts at the
# clock, which is the total at which the last item was claimed. The clock advances while one tenant
# has all work, so that it passes what others were charged before. Nothing is charged where no other
# tenant ever had work. What items really took (p_done, p_seconds; p_charged is what was charged)
# corrects the totals.
#
# The turns of a tenant's classes are p_lanes, a cycle; classes without work are skipped.
#
# The last row has no item, but the last tenant that was considered: kind 'more' when there are more
# than p_tenants.
#
# A lock lets one worker claim at a time: two would choose the same, and one of them nothing.
CLAIM_WORK = f"""
CREATE OR REPLACE FUNCTION claim_work(
    p_worker uuid, p_lanes text[], p_total integer, p_bounded text[], p_bound integer,
    p_recent_seconds double precision, p_after uuid, p_tenants integer,
    p_done uuid[], p_seconds double precision[], p_charged double precision[],
    OUT lane text, OUT kind text, OUT tenant_id uuid, OUT session_key uuid, OUT item_id uuid,
    OUT charged double precision
) RETURNS SETOF record LANGUAGE plpgsql
{_PLANS} AS $$
#variable_conflict use_column
DECLARE
    v_nobody CONSTANT uuid := '00000000-0000-0000-0000-000000000000';
    v_names CONSTANT text[] := {_NAMES};
    v_lanes CONSTANT integer := cardinality(p_lanes);
    v_now timestamptz;
    v_left integer := p_total;
    v_bound integer := p_bound;
    v_clock double precision;
    v_tenants uuid[];
    v_totals double precision[];
    v_costs double precision[];
    v_entries integer[];
    v_empty integer[];
    v_served boolean[];
    v_count integer;
    v_shared boolean;
    v_next integer;
    v_bit integer;
    v_got integer;
    v_tenant uuid;
    v_cost double precision;
    v_mean double precision;
BEGIN
    PERFORM pg_advisory_xact_lock(1885432933);
    v_now := clock_timestamp();
    IF cardinality(p_done) > 0 THEN
        UPDATE tenant_turn t
        SET total_seconds = t.total_seconds + done.more,
            item_seconds = t.item_seconds + (done.mean - t.item_seconds) / 4
        FROM (
            SELECT id, sum(took - paid) AS more, avg(took) AS mean
            FROM unnest(p_done, p_seconds, p_charged) AS one (id, took, paid) GROUP BY id
            UNION ALL
            SELECT v_nobody, 0, avg(took) FROM unnest(p_seconds) AS one (took)
        ) AS done
        WHERE t.tenant_id = done.id;
    END IF;
    -- Each table by itself: most of them have work of few tenants.
    WITH RECURSIVE ring (source, id, around, steps) AS (
        SELECT one, p_after, p_after = v_nobody, 0 FROM generate_series(1, {len(_SOME)}) AS one
        UNION ALL
        SELECT source, coalesce(following.id, v_nobody), around OR following.id IS NULL, steps + 1
        FROM ring CROSS JOIN LATERAL (
            SELECT CASE source {_AFTER_IN_ONE} END AS id OFFSET 0
        ) AS following
        WHERE steps < p_tenants + 2 AND (NOT around
            OR following.id IS NOT NULL AND (p_after = v_nobody OR following.id <= p_after))
    ), seen AS (
        SELECT DISTINCT around, id FROM ring WHERE steps > 0 AND id <> v_nobody
        ORDER BY around, id LIMIT p_tenants + 1
    )
    SELECT array_agg(seen.id), array_agg(t.total_seconds), array_agg(t.item_seconds),
        array_agg(coalesce(t.entry, 0)), array_agg(-1), array_agg(false), count(*)
    INTO v_tenants, v_totals, v_costs, v_entries, v_empty, v_served, v_count
    FROM seen LEFT JOIN tenant_turn t ON t.tenant_id = seen.id;
    v_shared := v_count > 1 OR EXISTS (
        SELECT FROM tenant_turn t WHERE t.tenant_id <> v_nobody AND t.tenant_id <> v_tenants[1]);
    IF v_shared THEN
        SELECT t.total_seconds, t.item_seconds INTO v_clock, v_mean
        FROM tenant_turn t WHERE t.tenant_id = v_nobody;
        v_clock := coalesce(v_clock, 0);
        v_mean := coalesce(v_mean, 1);
        FOR one IN 1 .. v_count LOOP
            v_totals[one] := greatest(v_totals[one], v_clock);
            v_costs[one] := coalesce(v_costs[one], v_mean);
        END LOOP;
    END IF;

    WHILE v_left > 0 LOOP
        v_next := NULL;
        FOR one IN 1 .. v_count LOOP
            IF v_empty[one] < 127 AND (v_next IS NULL OR v_totals[one] < v_totals[v_next]) THEN
                v_next := one;
            END IF;
        END LOOP;
        EXIT WHEN v_next IS NULL;
        v_tenant := v_tenants[v_next];
        v_cost := CASE WHEN v_shared THEN v_costs[v_next] ELSE 0 END;
        IF v_empty[v_next] < 0 THEN
            v_empty[v_next] := {_mask()};
        END IF;
        v_got := 0;
        FOR turn IN v_entries[v_next] .. v_entries[v_next] + v_lanes - 1 LOOP
            lane := p_lanes[1 + turn % v_lanes];
            v_bit := 1 << (array_position(v_names, lane) - 1);
            CONTINUE WHEN v_empty[v_next] & v_bit > 0;
            IF v_bound = 0 AND lane = ANY (p_bounded) THEN
                v_empty[v_next] := v_empty[v_next] | v_bit;
                CONTINUE;
            END IF;
            CASE lane {"".join(_claim(name) for name in _CLASSES)}
            END CASE;
            GET DIAGNOSTICS v_got = ROW_COUNT;
            IF v_got > 0 THEN
                v_entries[v_next] := (turn + 1) % v_lanes;
                EXIT;
            END IF;
            v_empty[v_next] := v_empty[v_next] | v_bit;
        END LOOP;
        IF v_got = 0 THEN
            -- Also where p_lanes lacks a class.
            v_empty[v_next] := 127;
            CONTINUE;
        END IF;
        v_left := v_left - 1;
        IF lane = ANY (p_bounded) THEN
            v_bound := v_bound - 1;
        END IF;
        CONTINUE WHEN NOT v_shared;
        v_clock := greatest(v_clock, v_totals[v_next]);
        v_totals[v_next] := v_totals[v_next] + v_cost;
        v_served[v_next] := true;
    END LOOP;
    IF v_left < p_total AND NOT v_shared THEN
        UPDATE tenant_turn t SET entry = v_entries[1] WHERE t.tenant_id = v_tenant;
        IF NOT FOUND THEN
            INSERT INTO tenant_turn (tenant_id, total_seconds, item_seconds, entry)
            VALUES (v_tenant, 0, 1, v_entries[1]);
        END IF;
    ELSIF v_left < p_total THEN
        INSERT INTO tenant_turn AS t (tenant_id, total_seconds, item_seconds, entry)
        SELECT id, total, cost, entry
        FROM unnest(v_tenants, v_totals, v_costs, v_entries, v_served)
            AS one (id, total, cost, entry, served)
        WHERE served
        UNION ALL
        SELECT v_nobody, v_clock, v_mean, 0
        ON CONFLICT (tenant_id) DO UPDATE
        SET total_seconds = excluded.total_seconds, entry = excluded.entry;
    END IF;
    lane := '';
    kind := CASE WHEN v_count > p_tenants THEN 'more' ELSE 'all' END;
    tenant_id := coalesce(v_tenants[v_count], v_nobody);
    session_key := NULL;
    item_id := NULL;
    charged := 0;
    RETURN NEXT;
END
$$
"""

# Whether a tenant beside p_tenants has an item that a worker may claim.
_WORK_WAITS = f"""
CREATE OR REPLACE FUNCTION work_waits(p_tenants uuid[], p_limit integer)
RETURNS boolean LANGUAGE plpgsql
{_PLANS} AS $$
DECLARE
    v_now CONSTANT timestamptz := clock_timestamp();
    v_tenant uuid := '00000000-0000-0000-0000-000000000000';
BEGIN
    IF NOT EXISTS (SELECT FROM tenant OFFSET 1) THEN
        RETURN false;
    END IF;
    FOR one IN 1 .. p_limit LOOP
        v_tenant := least({_AFTER_IN_ALL});
        EXIT WHEN v_tenant IS NULL;
        CONTINUE WHEN v_tenant = ANY (p_tenants);
        IF {
    " OR ".join(
        f"EXISTS (SELECT {_items(name)})"
        for name in ("backlog", "answers", "schemas", "index", "removals")
    )
} THEN
            RETURN true;
        END IF;
    END LOOP;
    RETURN false;
END
$$
"""


def create_function(text: str) -> None:
    """Creates a function, or replaces it."""
    # As it is written: neither a colon nor a percent sign in it names a parameter.
    op.get_bind().exec_driver_sql(text, execution_options={"no_parameters": True})


def upgrade() -> None:
    op.execute("""
        CREATE UNLOGGED TABLE IF NOT EXISTS tenant_turn (
            tenant_id uuid PRIMARY KEY,
            total_seconds double precision NOT NULL,
            item_seconds double precision NOT NULL,
            entry integer NOT NULL
        ) WITH (fillfactor = 50)
    """)
    op.execute("ALTER TABLE tenant_turn ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY")
    op.execute("DROP POLICY IF EXISTS tenant_turn_swept ON tenant_turn")
    op.execute("""
        CREATE POLICY tenant_turn_swept ON tenant_turn TO palimpsest_sweeper
            USING (true) WITH CHECK (true)
    """)
    op.execute("GRANT SELECT, INSERT, UPDATE, DELETE ON tenant_turn TO palimpsest_sweeper")
    for function in (CLAIM_WORK, _WORK_WAITS):
        create_function(function)
    for name in ("claim_work", "work_waits"):
        op.execute(f"REVOKE ALL ON FUNCTION {name} FROM public")
        op.execute(f"GRANT EXECUTE ON FUNCTION {name} TO palimpsest_sweeper")
