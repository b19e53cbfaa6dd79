"""Threads, sources and times of chunks; sessions are listed by the bytes of their names.

A chunk without them has NULL in the new columns and costs what it did: the index over threads
has no entry of it. The release before goes on appending by its functions, and reads chunks that
have a thread as if they had none. Its list of sessions takes longer meanwhile, since it asks for
another order than the index has. Every statement can run again.

Revision: 0028
After: 0026
"""

from alembic import op
from sqlalchemy import text

revision = "0028"
down_revision = "0027"
branch_labels = None
depends_on = None

COLUMNS = """
ALTER TABLE chunk
    ADD COLUMN IF NOT EXISTS thread text,
    ADD COLUMN IF NOT EXISTS source text,
    ADD COLUMN IF NOT EXISTS occurred_at timestamptz
"""

INDEXES = {
    "chunk_of_thread": "chunk (session_key, thread, position) WHERE thread IS NOT NULL",
    "session_of_tenant_by_bytes": "session (tenant_id, name COLLATE \"C\") WHERE name > ''",
}
IS_VALID = """
SELECT count(*) FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
WHERE c.relname = '{index}' AND i.indisvalid
"""

#: As in 0025, with three columns more; NULL in place of an array is NULL in all rows.
WRITE = """
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
$$
"""

#: As in 0023.
WRITE_REQUESTS = """
CREATE OR REPLACE FUNCTION write_requests_if_unchanged(
    p_session uuid, p_head bigint, p_incarnation integer,
    p_producer text, p_epoch bigint, p_last bigint,
    p_kinds text[], p_roles text[], p_texts text[],
    p_observations text[], p_thoughts text[], p_actions text[],
    p_metadata jsonb[], p_digests bytea[], p_bytes bigint,
    p_requests text[], p_request_digests bytea[], p_firsts bigint[], p_lasts bigint[],
    p_observed_first boolean[],
    p_threads text[], p_sources text[], p_times timestamptz[],
    OUT woken uuid[], OUT applied bigint
) RETURNS SETOF record LANGUAGE plpgsql SET enable_seqscan = off SET jit = off AS $$
DECLARE
    v_tenant uuid;
BEGIN
    SELECT tenant_id INTO v_tenant FROM session
    WHERE session_key = p_session AND head = p_head AND incarnation = p_incarnation
    FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    PERFORM FROM request WHERE session_key = p_session AND request_id = ANY (p_requests);
    IF FOUND THEN
        RETURN;
    END IF;
    SELECT a.woken, a.applied INTO woken, applied FROM write_if_unchanged(
        p_session, p_head, p_incarnation, p_producer, p_epoch, p_last, p_kinds, p_roles,
        p_texts, p_observations, p_thoughts, p_actions, p_metadata, p_digests, p_bytes,
        p_observed_first, p_threads, p_sources, p_times) AS a;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    INSERT INTO request (session_key, request_id, tenant_id, method, digest,
                         first_position, last_position)
    SELECT p_session, t.id, v_tenant, 'Append', t.digest, t.first, t.last
    FROM unnest(p_requests, p_request_digests, p_firsts, p_lasts) AS t (id, digest, first, last);
    RETURN NEXT;
END
$$
"""


def upgrade() -> None:
    op.execute(COLUMNS)
    op.execute(WRITE)
    op.execute(WRITE_REQUESTS)
    with op.get_context().autocommit_block():
        # These take their time and block nobody, so they may also wait for their locks.
        op.execute("SET lock_timeout = 0")
        for index, rows in INDEXES.items():
            if not op.get_bind().execute(text(IS_VALID.format(index=index))).scalar():
                # One that was interrupted is there, and invalid.
                op.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {index}")
                op.execute(f"CREATE INDEX CONCURRENTLY {index} ON {rows}")
        op.execute("DROP INDEX CONCURRENTLY IF EXISTS session_of_tenant")
        # As `migrations.upgrade` has it; a RESET would be the server's.
        op.execute("SET lock_timeout = '5s'")
