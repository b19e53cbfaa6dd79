-- Summary trees.

-- A node, written once. The keys leave no room for a gap, an overlap or a second node over the same
-- text: see tree_node_chain_fkey.
CREATE TABLE tree_node (
    session_key uuid NOT NULL,
    memory_id uuid NOT NULL,
    -- 0 for leaves.
    level integer NOT NULL,
    -- 1, 2, 3 … on its level.
    number bigint NOT NULL,
    tenant_id uuid NOT NULL,
    -- The revision that added it.
    revision bigint NOT NULL,
    -- On the level below; 0 and 0 for a leaf.
    first_child bigint NOT NULL,
    children integer NOT NULL,
    -- The text from here to before there: positions, and characters into their chunks.
    start_position bigint NOT NULL,
    start_offset bigint NOT NULL,
    end_position bigint NOT NULL,
    end_offset bigint NOT NULL,
    summary text NOT NULL,
    made text NOT NULL
        CONSTRAINT tree_node_made CHECK (made IN ('model', 'joined', 'cut', 'skipped')),
    text_tokens bigint NOT NULL,
    summary_tokens bigint NOT NULL,
    -- The words of a leaf's text, for retrieval.
    words tsvector,
    previous bigint GENERATED ALWAYS AS (NULLIF(number - 1, 0)) STORED,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (session_key, memory_id, level, number),
    -- What the chain below refers to.
    CONSTRAINT tree_node_end
        UNIQUE (session_key, memory_id, level, number, end_position, end_offset),
    -- The chain: on every level a node begins where the one before it ended.
    CONSTRAINT tree_node_chain_fkey
        FOREIGN KEY (session_key, memory_id, level, previous, start_position, start_offset)
        REFERENCES tree_node (session_key, memory_id, level, number, end_position, end_offset),
    CONSTRAINT tree_node_revision_fkey
        FOREIGN KEY (session_key, memory_id, revision) REFERENCES revision,
    CONSTRAINT tree_node_place CHECK (number >= 1 AND level >= 0),
    CONSTRAINT tree_node_first CHECK (number > 1 OR (start_position = 1 AND start_offset = 0)),
    CONSTRAINT tree_node_range
        CHECK ((end_position, end_offset) > (start_position, start_offset)),
    CONSTRAINT tree_node_children
        CHECK ((level = 0) = (children = 0) AND (level = 0) = (first_child = 0))
);
-- The parent of a child; no child begins two.
CREATE UNIQUE INDEX tree_node_parent ON tree_node (session_key, memory_id, level, first_child)
    WHERE level > 0;
-- For removals: what refers to a node, or to a revision, that is removed.
CREATE INDEX tree_node_next ON tree_node (session_key, memory_id, level, previous);
CREATE INDEX tree_node_by_revision ON tree_node (session_key, memory_id, revision);
ALTER TABLE tree_node ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY tree_node_of_tenant ON tree_node TO palimpsest_app
    USING (tenant_id = current_setting('app.tenant')::uuid)
    WITH CHECK (tenant_id = current_setting('app.tenant')::uuid);
CREATE POLICY tree_node_removed ON tree_node
    AS RESTRICTIVE FOR DELETE TO palimpsest_app
    USING (session_key IN (SELECT session_key FROM removal));
GRANT SELECT, INSERT, DELETE ON tree_node TO palimpsest_app;
