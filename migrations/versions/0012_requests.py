"""Requests: what clients asked for under an id of their own, and what came of it.

The release before takes no notice: it writes no requests, and appends as it did. Every
statement can run again.

Revision: 0012
After: 0011
"""

from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

REQUESTS = """
CREATE TABLE IF NOT EXISTS request (
    -- Of the session that it is about; of one that is about none, the key of the empty name.
    session_key uuid NOT NULL,
    request_id text NOT NULL,
    tenant_id uuid NOT NULL,
    method text NOT NULL,
    -- SHA-256 of what was asked for.
    digest bytea NOT NULL CONSTRAINT request_digest CHECK (octet_length(digest) = 32),
    -- Of an append: where its chunks are.
    first_position bigint,
    last_position bigint,
    created_at timestamptz NOT NULL DEFAULT now(),
    -- When it may be forgotten; NULL: not before the session is.
    expires_at timestamptz,
    PRIMARY KEY (session_key, request_id),
    CONSTRAINT request_chunk_fkey
        FOREIGN KEY (session_key, last_position) REFERENCES chunk (session_key, position),
    -- A check that is NULL holds, so NULL is named.
    CONSTRAINT request_positions CHECK (
        method <> 'Append'
        OR (first_position >= 1 AND last_position >= first_position) IS TRUE
    )
);
ALTER TABLE request ENABLE ROW LEVEL SECURITY;
ALTER TABLE request FORCE ROW LEVEL SECURITY;
DROP POLICY IF EXISTS request_of_tenant ON request;
CREATE POLICY request_of_tenant ON request TO palimpsest_app
    USING (tenant_id = current_setting('app.tenant')::uuid)
    WITH CHECK (tenant_id = current_setting('app.tenant')::uuid);
GRANT SELECT, INSERT ON request TO palimpsest_app;
"""

#: `append_if_unchanged` for chunks that came by requests. Nothing is written when one of
#: these was done before: under the session's lock nobody else can do it meanwhile.
APPEND = """
CREATE OR REPLACE FUNCTION append_requests_if_unchanged(
    p_session uuid, p_head bigint, p_incarnation integer,
    p_producer text, p_epoch bigint, p_last bigint,
    p_kinds text[], p_roles text[], p_texts text[],
    p_observations text[], p_thoughts text[], p_actions text[],
    p_metadata jsonb[], p_digests bytea[], p_bytes bigint,
    p_requests text[], p_request_digests bytea[], p_firsts bigint[], p_lasts bigint[],
    OUT woken uuid[], OUT applied bigint
) RETURNS SETOF record LANGUAGE plpgsql AS $$
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
    SELECT a.woken, a.applied INTO woken, applied FROM append_if_unchanged(
        p_session, p_head, p_incarnation, p_producer, p_epoch, p_last, p_kinds, p_roles,
        p_texts, p_observations, p_thoughts, p_actions, p_metadata, p_digests, p_bytes) AS a;
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
    op.execute(REQUESTS)
    op.execute(APPEND)
