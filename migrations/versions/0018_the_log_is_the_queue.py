"""Workers take work from the tables that have it; there is no queue beside them.

What is in whose hands, who lives and what somebody waits for is not worth a write-ahead log:
three tables without one, which a crash of the server empties. Whoever works says then once more
what he has in hand.

The release before goes on with the tables of its queue, in the schema `dispatch`: while both
run, two workers may take the same memory, which its epoch takes care of as ever. Once all
processes are of this release: DROP SCHEMA dispatch CASCADE. Every statement can run again.

Revision: 0018
After: 0017
"""

from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None

TABLES = """
-- A worker process, and when it last said that it lives.
CREATE UNLOGGED TABLE IF NOT EXISTS worker (
    worker_id uuid PRIMARY KEY,
    beat_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
-- What a worker has in hand: nobody else takes it meanwhile.
CREATE UNLOGGED TABLE IF NOT EXISTS claim (
    session_key uuid NOT NULL,
    item_id uuid NOT NULL,
    kind text NOT NULL,
    worker_id uuid NOT NULL,
    claimed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (session_key, item_id, kind)
);
-- Memories that somebody waits for.
CREATE UNLOGGED TABLE IF NOT EXISTS wanted (
    session_key uuid NOT NULL,
    memory_id uuid NOT NULL,
    tenant_id uuid NOT NULL,
    wanted_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (session_key, memory_id)
);
CREATE INDEX IF NOT EXISTS wanted_turns ON wanted (tenant_id, wanted_at);
GRANT SELECT, INSERT, DELETE ON claim, wanted TO palimpsest_sweeper;
GRANT SELECT, INSERT, UPDATE, DELETE ON worker TO palimpsest_sweeper;
ALTER TABLE wanted ENABLE ROW LEVEL SECURITY;
ALTER TABLE wanted FORCE ROW LEVEL SECURITY;
DROP POLICY IF EXISTS wanted_swept ON wanted;
CREATE POLICY wanted_swept ON wanted TO palimpsest_sweeper USING (true) WITH CHECK (true)
"""

#: Turns between tenants, and the order within one. That a row is ready after -infinity is so of
#: each: it keeps these indexes to whoever says it. Statistics of when nothing had work promise
#: anybody else, who has the key of a memory, that this index is empty, and it would be read whole.
INDEXES = {
    "memory_turns": "memory (tenant_id, ready_at) WHERE has_work AND status = 'active'"
    " AND ready_at > '-infinity'",
    "answer_turns": "answer (tenant_id, ready_at) WHERE status = 'pending'"
    " AND ready_at > '-infinity'",
    "schema_draft_turns": "schema_draft (tenant_id, ready_at) WHERE status = 'pending'"
    " AND ready_at > '-infinity'",
    "session_turns": "session (tenant_id, index_ready_at) WHERE has_unindexed"
    " AND index_ready_at > '-infinity'",
}
#: What they stand in for.
REPLACED = ("memory_runnable", "answer_runnable", "schema_draft_runnable", "session_unindexed")

#: Of each lane: the rows, the kind of work, the column of its ids, which rows there is an index
#: of, which of them are due, and in which order a tenant's are taken.
_MEMORY = (
    *("memory r", "memory", "r.memory_id"),
    "r.has_work AND r.status = 'active' AND r.ready_at > '-infinity'",
)
_LANES = {
    "wanted": (
        *("wanted r", "memory", "r.memory_id", "true"),
        """EXISTS (SELECT FROM (
                            SELECT has_work, status, ready_at FROM memory
                            WHERE session_key = r.session_key AND memory_id = r.memory_id OFFSET 0
                        ) AS m
                        WHERE m.has_work AND m.status = 'active' AND m.ready_at <= v_now)""",
        "r.wanted_at",
    ),
    "answers": (
        *("answer r", "answer", "r.answer_id"),
        "r.status = 'pending' AND r.ready_at > '-infinity'",
        *("r.ready_at <= v_now", "r.ready_at"),
    ),
    "schemas": (
        *("schema_draft r", "schema", "r.draft_id"),
        "r.status = 'pending' AND r.ready_at > '-infinity'",
        *("r.ready_at <= v_now", "r.ready_at"),
    ),
    "recent": (
        *_MEMORY,
        "r.ready_at <= v_now AND r.ready_at > v_now - make_interval(secs => p_recent_seconds)",
        "r.ready_at DESC",
    ),
    "backlog": (*_MEMORY, "r.ready_at <= v_now", "r.ready_at"),
    "index": (
        *("session r", "index", "r.session_key"),
        "r.has_unindexed AND r.index_ready_at > '-infinity'",
        *("r.index_ready_at <= v_now", "r.index_ready_at"),
    ),
}

_NEXT_TENANT = """
            WHEN '{lane}' THEN
                SELECT r.tenant_id INTO v_next FROM {of}
                WHERE {indexed} AND r.tenant_id > v_tenant ORDER BY r.tenant_id LIMIT 1;"""

_TAKE = """
            WHEN '{lane}' THEN
                RETURN QUERY
                INSERT INTO claim AS c (session_key, item_id, kind, worker_id)
                SELECT r.session_key, {item}, '{kind}', p_worker FROM {of}
                WHERE {indexed} AND r.tenant_id = v_next AND {due}
                    AND NOT EXISTS (SELECT FROM claim held
                        WHERE held.session_key = r.session_key AND held.item_id = {item}
                            AND held.kind = '{kind}')
                ORDER BY {order} LIMIT least(v_each, v_need)
                ON CONFLICT DO NOTHING
                RETURNING '{lane}', c.kind, v_next, c.session_key, c.item_id;"""

#: One plan of each statement is any good, whatever statistics say: a plan that was made while
#: nothing was to do must not read all of a backlog. Whoever takes is alone: two would take the
#: same, and one of them nothing.
#:
#: p_lanes are looked at in their order, up to p_quotas items of each, p_bound of those of
#: p_bounded together, and p_total of all. In a
#: lane the tenants have turns, from the one behind p_after on: one item each, then what is left.
#: A lane's last row has no item, and says where it ended: kind 'more' before it had come round.
TAKE_WORK = """
CREATE OR REPLACE FUNCTION take_work(
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
    PERFORM pg_advisory_xact_lock({lock});
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
                CASE lane{next_tenant}
                END CASE;
                IF v_next IS NULL THEN
                    EXIT WHEN v_around;
                    v_around := true;
                    v_tenant := v_nobody;
                    CONTINUE;
                END IF;
                EXIT WHEN v_around AND p_after[i] <> v_nobody AND v_next > p_after[i];
                v_tenant := v_next;
                CASE lane{take}
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
GRANT EXECUTE ON FUNCTION take_work TO palimpsest_sweeper
"""

#: Whoever takes work waits for this key.
_LOCK_KEY = 0x70616C65


def _cases(template: str) -> str:
    names = ("of", "kind", "item", "indexed", "due", "order")
    return "".join(
        template.format(lane=lane, **dict(zip(names, parts, strict=True)))
        for lane, parts in _LANES.items()
    )


def upgrade() -> None:
    with op.get_context().autocommit_block():
        op.execute(TABLES)
        # These take their time and block nobody, so they may also wait for their lock.
        op.execute("SET lock_timeout = 0")
        for name, rows in INDEXES.items():
            # One that was broken off is invalid, and stays so.
            op.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {name}")
            op.execute(f"CREATE INDEX CONCURRENTLY {name} ON {rows}")
        for name in REPLACED:
            op.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {name}")
        # As `migrations.upgrade` has it; a RESET would be the server's.
        op.execute("SET lock_timeout = '5s'")
    op.execute(
        TAKE_WORK.format(lock=_LOCK_KEY, next_tenant=_cases(_NEXT_TENANT), take=_cases(_TAKE))
    )
