-- PRISM memories: amendments, the states between them, and schemas that are generated.

CREATE TABLE amendment (
    session_key uuid NOT NULL,
    memory_id uuid NOT NULL,
    revision bigint NOT NULL,
    ordinal integer NOT NULL,
    tenant_id uuid NOT NULL,
    -- RFC 9535 normalized path.
    path text NOT NULL,
    op text NOT NULL CONSTRAINT amendment_op CHECK (op IN ('add', 'update', 'remove')),
    -- Canonical JSON; text, since jsonb would reorder keys and rewrite numbers.
    value text NOT NULL,
    op_corrected boolean NOT NULL,
    PRIMARY KEY (session_key, memory_id, revision, ordinal),
    CONSTRAINT amendment_revision_fkey
        FOREIGN KEY (session_key, memory_id, revision) REFERENCES revision
);
-- What touches a path is found by a range of bytes. A path has up to 20,000 characters and an index
-- entry at most 2,700 bytes: the index has the beginning, and the search compares the rest.
CREATE INDEX amendment_by_path ON amendment
    (session_key, memory_id, left(path, 500) COLLATE "C", revision, ordinal);
ALTER TABLE amendment ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY amendment_of_tenant ON amendment TO palimpsest_app
    USING (tenant_id = current_setting('app.tenant')::uuid)
    WITH CHECK (tenant_id = current_setting('app.tenant')::uuid);
CREATE POLICY amendment_removed ON amendment
    AS RESTRICTIVE FOR DELETE TO palimpsest_app
    USING (session_key IN (SELECT session_key FROM removal));
GRANT SELECT, INSERT, DELETE ON amendment TO palimpsest_app;


CREATE TABLE rejection (
    session_key uuid NOT NULL,
    memory_id uuid NOT NULL,
    revision bigint NOT NULL,
    ordinal integer NOT NULL,
    tenant_id uuid NOT NULL,
    proposal text NOT NULL,
    reason text NOT NULL,
    PRIMARY KEY (session_key, memory_id, revision, ordinal),
    CONSTRAINT rejection_revision_fkey
        FOREIGN KEY (session_key, memory_id, revision) REFERENCES revision
);
ALTER TABLE rejection ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY rejection_of_tenant ON rejection TO palimpsest_app
    USING (tenant_id = current_setting('app.tenant')::uuid)
    WITH CHECK (tenant_id = current_setting('app.tenant')::uuid);
CREATE POLICY rejection_removed ON rejection
    AS RESTRICTIVE FOR DELETE TO palimpsest_app
    USING (session_key IN (SELECT session_key FROM removal));
GRANT SELECT, INSERT, DELETE ON rejection TO palimpsest_app;


-- A base that a fold (or the creation) wrote. Kept: it is also a snapshot.
CREATE TABLE prism_base (
    session_key uuid NOT NULL,
    memory_id uuid NOT NULL,
    revision bigint NOT NULL,
    tenant_id uuid NOT NULL,
    value text NOT NULL,
    PRIMARY KEY (session_key, memory_id, revision),
    CONSTRAINT prism_base_revision_fkey
        FOREIGN KEY (session_key, memory_id, revision) REFERENCES revision
);
ALTER TABLE prism_base ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY prism_base_of_tenant ON prism_base TO palimpsest_app
    USING (tenant_id = current_setting('app.tenant')::uuid)
    WITH CHECK (tenant_id = current_setting('app.tenant')::uuid);
CREATE POLICY prism_base_removed ON prism_base
    AS RESTRICTIVE FOR DELETE TO palimpsest_app
    USING (session_key IN (SELECT session_key FROM removal));
GRANT SELECT, INSERT, DELETE ON prism_base TO palimpsest_app;


-- A state between two bases, so that any revision is read from one close by. Prompts do not know
-- it.
CREATE TABLE prism_snapshot (
    session_key uuid NOT NULL,
    memory_id uuid NOT NULL,
    revision bigint NOT NULL,
    tenant_id uuid NOT NULL,
    value text NOT NULL,
    PRIMARY KEY (session_key, memory_id, revision),
    CONSTRAINT prism_snapshot_revision_fkey
        FOREIGN KEY (session_key, memory_id, revision) REFERENCES revision
);
ALTER TABLE prism_snapshot ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY prism_snapshot_of_tenant ON prism_snapshot TO palimpsest_app
    USING (tenant_id = current_setting('app.tenant')::uuid)
    WITH CHECK (tenant_id = current_setting('app.tenant')::uuid);
CREATE POLICY prism_snapshot_removed ON prism_snapshot
    AS RESTRICTIVE FOR DELETE TO palimpsest_app
    USING (session_key IN (SELECT session_key FROM removal));
GRANT SELECT, INSERT, DELETE ON prism_snapshot TO palimpsest_app;


-- The newest state, so that reading it is one row.
CREATE TABLE prism_value (
    session_key uuid NOT NULL,
    memory_id uuid NOT NULL,
    tenant_id uuid NOT NULL,
    revision bigint NOT NULL,
    value text NOT NULL,
    -- Amendments since the newest base or snapshot.
    unsaved_amendments integer NOT NULL DEFAULT 0,
    PRIMARY KEY (session_key, memory_id),
    CONSTRAINT prism_value_revision_fkey
        FOREIGN KEY (session_key, memory_id, revision) REFERENCES revision
) WITH (fillfactor = 70);
ALTER TABLE prism_value ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY prism_value_of_tenant ON prism_value TO palimpsest_app
    USING (tenant_id = current_setting('app.tenant')::uuid)
    WITH CHECK (tenant_id = current_setting('app.tenant')::uuid);
CREATE POLICY prism_value_removed ON prism_value
    AS RESTRICTIVE FOR DELETE TO palimpsest_app
    USING (session_key IN (SELECT session_key FROM removal));
GRANT SELECT, INSERT, UPDATE (revision, value, unsaved_amendments), DELETE
    ON prism_value TO palimpsest_app;


CREATE TABLE schema_draft (
    session_key uuid NOT NULL,
    draft_id uuid NOT NULL,
    tenant_id uuid NOT NULL,
    domain text NOT NULL,
    example_query text NOT NULL,
    -- The one that is asked for, empty for the default; then the one that wrote it.
    model text NOT NULL,
    status text NOT NULL DEFAULT 'pending'
        CONSTRAINT schema_draft_status CHECK (status IN ('pending', 'complete', 'failed')),
    -- Class source, once it is complete.
    source text NOT NULL DEFAULT '',
    -- Replies of the model that it took, once it is complete.
    replies integer NOT NULL DEFAULT 0,
    failure text NOT NULL DEFAULT '',
    -- Failed tries of the work, as with answers.
    attempts integer NOT NULL DEFAULT 0,
    ready_at timestamptz NOT NULL DEFAULT now(),
    created_at timestamptz NOT NULL DEFAULT now(),
    -- The model whose condition it waits for, and why; NULL: it waits for none.
    waiting_model text,
    waiting_cause text,
    PRIMARY KEY (session_key, draft_id),
    CONSTRAINT schema_draft_session_fkey FOREIGN KEY (session_key, tenant_id)
        REFERENCES session (session_key, tenant_id)
);
-- For the queue: see take_work.
CREATE INDEX schema_draft_turns ON schema_draft (tenant_id, ready_at)
    WHERE status = 'pending' AND ready_at > '-infinity';
CREATE INDEX schema_draft_pending ON schema_draft (tenant_id, draft_id) WHERE status = 'pending';
CREATE INDEX schema_draft_waiting ON schema_draft (waiting_model, tenant_id, ready_at)
    WHERE waiting_model IS NOT NULL;
ALTER TABLE schema_draft ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY schema_draft_of_tenant ON schema_draft TO palimpsest_app
    USING (tenant_id = current_setting('app.tenant')::uuid)
    WITH CHECK (tenant_id = current_setting('app.tenant')::uuid);
CREATE POLICY schema_draft_removed ON schema_draft
    AS RESTRICTIVE FOR DELETE TO palimpsest_app
    USING (session_key IN (SELECT session_key FROM removal));
CREATE POLICY schema_draft_runnable ON schema_draft FOR SELECT TO palimpsest_sweeper
    USING (status = 'pending');
GRANT SELECT, INSERT, DELETE ON schema_draft TO palimpsest_app;
GRANT UPDATE (
    model, status, source, replies, failure, attempts, ready_at, waiting_model, waiting_cause
) ON schema_draft TO palimpsest_app;
GRANT SELECT (session_key, draft_id, tenant_id, status, ready_at, waiting_model)
    ON schema_draft TO palimpsest_sweeper;

-- The bound of what a tenant may have pending. As many index entries are read as the bound allows:
-- only schema_draft_pending has the order, and nothing may be sorted, so there is one plan,
-- whatever statistics say.
CREATE FUNCTION count_pending_schema_draft(p_tenant uuid, p_limit integer)
RETURNS bigint LANGUAGE plpgsql STABLE SET enable_sort = off AS $$
BEGIN
    RETURN (
        SELECT count(*) FROM (
            SELECT FROM schema_draft WHERE tenant_id = p_tenant AND status = 'pending'
            ORDER BY draft_id LIMIT p_limit
        ) AS counted
    );
END
$$;
