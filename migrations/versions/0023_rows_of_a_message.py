"""Rows of a message: fewer of them move, and an append wakes memories as of now.

Rows that every message changes keep room on their page for the next version, so that none of
their indexes has to learn where it is. The release before takes no notice. Every statement can
run again.

Revision: 0023
After: 0022
"""

from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None

#: Of what is written to a page from now on; pages that are full stay as they are.
FILLED = {"session": 80, "producer": 80, "memory": 70, "prism_value": 70, "spend": 80}

#: As before, but for `ready_at`, and for plans that are good however old the statistics are: one
#: that was made while the tables were empty would read all of them, for as long as nobody
#: analyzes them. The keys of the chunks are checked within it, so this holds for them as well.
WRITE = """
CREATE OR REPLACE FUNCTION write_if_unchanged(
    p_session uuid, p_head bigint, p_incarnation integer,
    p_producer text, p_epoch bigint, p_last bigint,
    p_kinds text[], p_roles text[], p_texts text[],
    p_observations text[], p_thoughts text[], p_actions text[],
    p_metadata jsonb[], p_digests bytea[], p_bytes bigint,
    p_observed_first boolean[],
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
    SET head = p_head + cardinality(p_kinds), content_bytes = content_bytes + p_bytes
    WHERE session_key = p_session;
    INSERT INTO chunk (tenant_id, session_key, position, producer_id, producer_sequence,
                       kind, role, text, observation, thought, action, metadata, digest,
                       observed_first)
    SELECT v_tenant, p_session, p_head + t.n, p_producer, p_last + t.n,
        t.kind, t.role, t.text, t.observation, t.thought, t.action, t.metadata, t.digest,
        t.observed_first
    FROM unnest(p_kinds, p_roles, p_texts, p_observations, p_thoughts, p_actions,
                p_metadata, p_digests, p_observed_first) WITH ORDINALITY
        AS t (kind, role, text, observation, thought, action, metadata, digest, observed_first, n);
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

WRITE_REQUESTS = """
CREATE OR REPLACE FUNCTION write_requests_if_unchanged(
    p_session uuid, p_head bigint, p_incarnation integer,
    p_producer text, p_epoch bigint, p_last bigint,
    p_kinds text[], p_roles text[], p_texts text[],
    p_observations text[], p_thoughts text[], p_actions text[],
    p_metadata jsonb[], p_digests bytea[], p_bytes bigint,
    p_requests text[], p_request_digests bytea[], p_firsts bigint[], p_lasts bigint[],
    p_observed_first boolean[],
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
        p_observed_first) AS a;
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
    # Each by itself: an append locks a session before its memories.
    with op.get_context().autocommit_block():
        for table, percent in FILLED.items():
            op.execute(f"ALTER TABLE {table} SET (fillfactor = {percent})")
    op.execute(WRITE)
    op.execute(WRITE_REQUESTS)
