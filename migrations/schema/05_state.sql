-- State vectors.

-- A state vector, written once. Its revision names the steps that it covers, in a chain without
-- gaps: see revision_chain_fkey.
CREATE TABLE state_vector (
    session_key uuid NOT NULL,
    memory_id uuid NOT NULL,
    -- The revision that added it; 0 has the task prompt.
    revision bigint NOT NULL,
    tenant_id uuid NOT NULL,
    -- 1 for vectors of steps.
    level integer NOT NULL,
    text text NOT NULL,
    tokens bigint NOT NULL,
    made text NOT NULL
        CONSTRAINT state_vector_made CHECK (made IN ('task', 'model', 'cut', 'skipped')),
    -- It stands for after_position + 1 to to_position; from_position + 1 on is new in it.
    after_position bigint NOT NULL,
    from_position bigint NOT NULL,
    to_position bigint NOT NULL,
    -- Revisions of the vectors of the level below that it was made from.
    children bigint[] NOT NULL,
    replies integer NOT NULL,
    -- Pinned strings that the model had dropped.
    appended text[] NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (session_key, memory_id, revision),
    CONSTRAINT state_vector_revision_fkey
        FOREIGN KEY (session_key, memory_id, revision) REFERENCES revision,
    CONSTRAINT state_vector_level
        CHECK (level >= 1 AND (level = 1) = (cardinality(children) = 0)),
    CONSTRAINT state_vector_range CHECK (
        0 <= after_position AND after_position <= from_position AND from_position <= to_position
        AND (from_position < to_position OR revision = 0)
    ),
    CONSTRAINT state_vector_task CHECK ((made = 'task') = (revision = 0))
);
CREATE INDEX state_vector_by_level ON state_vector (session_key, memory_id, level, revision);
ALTER TABLE state_vector ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY state_vector_of_tenant ON state_vector TO palimpsest_app
    USING (tenant_id = current_setting('app.tenant')::uuid)
    WITH CHECK (tenant_id = current_setting('app.tenant')::uuid);
CREATE POLICY state_vector_removed ON state_vector
    AS RESTRICTIVE FOR DELETE TO palimpsest_app
    USING (session_key IN (SELECT session_key FROM removal));
GRANT SELECT, INSERT, DELETE ON state_vector TO palimpsest_app;


-- Which vectors are in use, for every revision: service.domain.state.vectors.VectorLevels.
CREATE TABLE state_levels (
    session_key uuid NOT NULL,
    memory_id uuid NOT NULL,
    revision bigint NOT NULL,
    tenant_id uuid NOT NULL,
    -- Of each level from 1 up: the vectors since it began, by their revisions.
    runs jsonb NOT NULL,
    PRIMARY KEY (session_key, memory_id, revision),
    CONSTRAINT state_levels_revision_fkey
        FOREIGN KEY (session_key, memory_id, revision) REFERENCES revision
);
ALTER TABLE state_levels ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY state_levels_of_tenant ON state_levels TO palimpsest_app
    USING (tenant_id = current_setting('app.tenant')::uuid)
    WITH CHECK (tenant_id = current_setting('app.tenant')::uuid);
CREATE POLICY state_levels_removed ON state_levels
    AS RESTRICTIVE FOR DELETE TO palimpsest_app
    USING (session_key IN (SELECT session_key FROM removal));
GRANT SELECT, INSERT, DELETE ON state_levels TO palimpsest_app;
