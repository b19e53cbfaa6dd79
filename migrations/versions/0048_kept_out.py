"""Keeps texts out of sessions: what was redacted is stored as a tombstone when it is appended anew.

The release before does not know these rules, and stores such chunks.

Revision: 0048
After: 0047
"""

from alembic import op

revision = "0048"
down_revision = "0047"
branch_labels = None
depends_on = None

#: As migrations/schema/01_log.sql has it, but for sessions that keep texts out: these are compared
#: with what is appended, which takes the locks first.
_WRITE = """
CREATE OR REPLACE FUNCTION write_if_unchanged(
    p_session uuid, p_head bigint, p_incarnation integer,
    p_producer text, p_epoch bigint, p_last bigint,
    p_kinds text[], p_roles text[], p_texts text[],
    p_observations text[], p_thoughts text[], p_actions text[],
    p_metadata jsonb[], p_digests bytea[], p_bytes bigint,
    p_observed_first boolean[],
    p_threads text[], p_sources text[], p_times timestamptz[],
    OUT woken uuid[], OUT applied bigint
) RETURNS SETOF record LANGUAGE plpgsql SET enable_seqscan = off SET jit = off AS $$
DECLARE
    v_tenant uuid;
    -- A sharded database takes no now() inside of CASE.
    v_now timestamptz := now();
BEGIN
    SELECT tenant_id INTO v_tenant FROM session
    WHERE session_key = p_session AND head = p_head AND incarnation = p_incarnation
        AND NOT keeps_out
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
    SET head = p_head + cardinality(p_kinds), content_bytes = content_bytes + p_bytes,
        has_unindexed = true
    WHERE session_key = p_session;
    INSERT INTO chunk (tenant_id, session_key, position, producer_id, producer_sequence,
                       kind, role, text, observation, thought, action, metadata, digest,
                       observed_first, thread, source, occurred_at)
    SELECT v_tenant, p_session, p_head + t.n, p_producer, p_last + t.n,
        t.kind, t.role, t.text, t.observation, t.thought, t.action, t.metadata, t.digest,
        t.observed_first, t.thread, t.source, t.occurred_at
    FROM unnest(p_kinds, p_roles, p_texts, p_observations, p_thoughts, p_actions,
                p_metadata, p_digests, p_observed_first, p_threads, p_sources, p_times)
        WITH ORDINALITY
        AS t (kind, role, text, observation, thought, action, metadata, digest, observed_first,
              thread, source, occurred_at, n);
    WITH roused AS (
        UPDATE memory SET has_work = true, resting = false,
            ready_at = CASE WHEN resting THEN v_now ELSE greatest(ready_at, v_now) END
        WHERE session_key = p_session AND (NOT has_work OR resting) AND status <> 'sealed'
            AND (wake_position IS NULL OR wake_position <= p_head + cardinality(p_kinds))
        RETURNING memory_id, status
    )
    SELECT array_agg(memory_id) FILTER (WHERE status = 'active') INTO woken FROM roused;
    SELECT min(applied_position) INTO applied FROM memory
    WHERE session_key = p_session AND status = 'active';
    RETURN NEXT;
END
$$;
"""


def upgrade() -> None:
    op.execute(
        "ALTER TABLE session ADD COLUMN IF NOT EXISTS keeps_out boolean NOT NULL DEFAULT false"
    )
    op.execute("GRANT UPDATE (keeps_out) ON session TO palimpsest_app")
    op.execute("""
        CREATE TABLE IF NOT EXISTS keep_out (
            session_key uuid NOT NULL,
            words integer NOT NULL,
            digest bytea NOT NULL,
            tenant_id uuid NOT NULL,
            redaction_id uuid NOT NULL,
            created_at timestamptz NOT NULL DEFAULT now(),
            CONSTRAINT keep_out_pkey PRIMARY KEY (session_key, words, digest),
            CONSTRAINT keep_out_session_fkey FOREIGN KEY (session_key, tenant_id)
                REFERENCES session (session_key, tenant_id) ON DELETE CASCADE,
            CONSTRAINT keep_out_words CHECK (words >= 0),
            CONSTRAINT keep_out_digest CHECK (octet_length(digest) = 32)
        )
    """)
    op.execute("ALTER TABLE keep_out ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY")
    op.execute("DROP POLICY IF EXISTS keep_out_of_tenant ON keep_out")
    op.execute("""
        CREATE POLICY keep_out_of_tenant ON keep_out TO palimpsest_app
            USING (tenant_id = current_setting('app.tenant')::uuid)
            WITH CHECK (tenant_id = current_setting('app.tenant')::uuid)
    """)
    op.execute("DROP POLICY IF EXISTS keep_out_removed ON keep_out")
    op.execute("""
        CREATE POLICY keep_out_removed ON keep_out AS RESTRICTIVE FOR DELETE TO palimpsest_app
            USING (session_key IN (SELECT session_key FROM removal))
    """)
    op.execute("GRANT SELECT, INSERT, DELETE ON keep_out TO palimpsest_app")
    op.execute(_WRITE)
