"""Rows of a session belong to its tenant; what is sealed is not woken by a lone chunk.

The release before goes on working: it writes no other tenants. Every statement can run again.

Revision: 0014
After: 0013
"""

from alembic import op
from sqlalchemy import text

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

#: For the keys below: of a session's key there is one tenant.
SESSION_TENANT = """
CREATE UNIQUE INDEX CONCURRENTLY session_tenant ON session (session_key, tenant_id)
"""

IS_VALID = "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass('session_tenant')"

#: What stands right below a session. What is below these is written with them as it was.
TABLES = ("producer", "memory", "intent", "spend", "budget", "schema_draft")

#: Locks in the order in which appends take them.
KEY = """
LOCK TABLE session, {table} IN ACCESS EXCLUSIVE MODE;
ALTER TABLE {table} DROP CONSTRAINT IF EXISTS {table}_session_fkey;
ALTER TABLE {table} ADD CONSTRAINT {table}_session_fkey
    FOREIGN KEY (session_key, tenant_id) REFERENCES session (session_key, tenant_id) NOT VALID;
"""

#: As before, but that it leaves alone what is sealed, as `storage.log.chunks.write` does.
APPEND = """
CREATE OR REPLACE FUNCTION append_if_unchanged(
    p_session uuid, p_head bigint, p_incarnation integer,
    p_producer text, p_epoch bigint, p_last bigint,
    p_kinds text[], p_roles text[], p_texts text[],
    p_observations text[], p_thoughts text[], p_actions text[],
    p_metadata jsonb[], p_digests bytea[], p_bytes bigint,
    OUT woken uuid[], OUT applied bigint
) RETURNS SETOF record LANGUAGE plpgsql AS $$
DECLARE
    v_tenant uuid;
    -- A sharded database takes no now() inside of CASE.
    v_now timestamptz := now();
BEGIN
    SELECT tenant_id INTO v_tenant FROM session
    WHERE session_key = p_session AND head = p_head AND incarnation = p_incarnation
    FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    UPDATE producer SET last_sequence = p_last + cardinality(p_kinds)
    WHERE session_key = p_session AND producer_id = p_producer
        AND epoch = p_epoch AND last_sequence = p_last;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    UPDATE session
    SET head = p_head + cardinality(p_kinds), content_bytes = content_bytes + p_bytes
    WHERE session_key = p_session;
    INSERT INTO chunk (tenant_id, session_key, position, producer_id, producer_sequence,
                       kind, role, text, observation, thought, action, metadata, digest)
    SELECT v_tenant, p_session, p_head + t.n, p_producer, p_last + t.n,
        t.kind, t.role, t.text, t.observation, t.thought, t.action, t.metadata, t.digest
    FROM unnest(p_kinds, p_roles, p_texts, p_observations, p_thoughts, p_actions,
                p_metadata, p_digests) WITH ORDINALITY
        AS t (kind, role, text, observation, thought, action, metadata, digest, n);
    WITH roused AS (
        UPDATE memory SET has_work = true, resting = false,
            ready_at = CASE WHEN resting THEN v_now ELSE ready_at END
        WHERE session_key = p_session AND (NOT has_work OR resting) AND status <> 'sealed'
            AND (wake_position IS NULL OR wake_position <= p_head + cardinality(p_kinds))
        RETURNING memory_id, status
    )
    SELECT array_agg(memory_id) FILTER (WHERE status = 'active') INTO woken FROM roused;
    SELECT min(applied_position) INTO applied FROM memory
    WHERE session_key = p_session AND status = 'active';
    RETURN NEXT;
END
$$
"""


def upgrade() -> None:
    op.execute(APPEND)
    with op.get_context().autocommit_block():
        # This takes its time and blocks nobody, so it may also wait for its lock.
        op.execute("SET lock_timeout = 0")
        if not op.get_bind().execute(text(IS_VALID)).scalar():
            # One that was interrupted is there, and invalid.
            op.execute("DROP INDEX CONCURRENTLY IF EXISTS session_tenant")
            op.execute(SESSION_TENANT)
        op.execute("SET lock_timeout = '5s'")
        for table in TABLES:
            op.execute(KEY.format(table=table))
        op.execute("SET lock_timeout = 0")
        # A foreign key is validated by a query, which row-level security asks for a tenant.
        # What it then hides was written with keys that are made of the tenant.
        op.execute("SET app.tenant = '00000000-0000-0000-0000-000000000000'")
        for table in TABLES:
            op.execute(f"ALTER TABLE {table} VALIDATE CONSTRAINT {table}_session_fkey")
        op.execute("RESET app.tenant")
        # As `migrations.upgrade` has it; a RESET would be the server's.
        op.execute("SET lock_timeout = '5s'")
