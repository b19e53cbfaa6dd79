"""Summary trees: their nodes, and the trajectories of questions to them.

The release before goes on working with its own memories: it fails to read a session's
list of memories once there is a tree in it, so trees are made when all processes are of
this release. Every statement can run again.

Revision: 0005
After: 0004
"""

from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

#: NOT VALID and then validated: what is there is checked without keeping writers waiting.
KINDS = """
ALTER TABLE memory
    ADD COLUMN IF NOT EXISTS seal_position bigint,
    DROP CONSTRAINT IF EXISTS memory_kind,
    ADD CONSTRAINT memory_kind CHECK (kind IN ('prism', 'tree')) NOT VALID,
    DROP CONSTRAINT IF EXISTS memory_status,
    ADD CONSTRAINT memory_status CHECK (status IN ('active', 'stalled', 'sealed')) NOT VALID;
ALTER TABLE revision
    DROP CONSTRAINT IF EXISTS revision_kind,
    ADD CONSTRAINT revision_kind CHECK (
        kind IN ('create', 'step', 'skip', 'fold', 'edit', 'rollback', 'consolidation',
                 'schema', 'build', 'seal')
    ) NOT VALID;
GRANT UPDATE (seal_position) ON memory TO palimpsest_app;
"""

CHECKED = (
    "ALTER TABLE memory VALIDATE CONSTRAINT memory_kind",
    "ALTER TABLE memory VALIDATE CONSTRAINT memory_status",
    "ALTER TABLE revision VALIDATE CONSTRAINT revision_kind",
)

NODES = """
CREATE TABLE IF NOT EXISTS tree_node (
    session_key uuid NOT NULL,
    memory_id uuid NOT NULL,
    -- 0 for leaves.
    level integer NOT NULL,
    -- 1, 2, 3 … on its level.
    number bigint NOT NULL,
    tenant_id uuid NOT NULL,
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
    CONSTRAINT tree_node_end
        UNIQUE (session_key, memory_id, level, number, end_position, end_offset),
    -- On every level a node begins where the one before it ended.
    CONSTRAINT tree_node_chain_fkey
        FOREIGN KEY (session_key, memory_id, level, previous, start_position, start_offset)
        REFERENCES tree_node (session_key, memory_id, level, number, end_position, end_offset),
    CONSTRAINT tree_node_revision_fkey FOREIGN KEY (session_key, memory_id, revision)
        REFERENCES revision (session_key, memory_id, revision),
    CONSTRAINT tree_node_place CHECK (number >= 1 AND level >= 0),
    CONSTRAINT tree_node_first CHECK (number > 1 OR (start_position = 1 AND start_offset = 0)),
    CONSTRAINT tree_node_range
        CHECK ((end_position, end_offset) > (start_position, start_offset)),
    CONSTRAINT tree_node_children
        CHECK ((level = 0) = (children = 0) AND (level = 0) = (first_child = 0))
);
-- The parent of a child; no child begins two.
CREATE UNIQUE INDEX IF NOT EXISTS tree_node_parent
    ON tree_node (session_key, memory_id, level, first_child) WHERE level > 0;
"""

ANSWERS = """
ALTER TABLE answer
    -- How the tree is to be navigated; NULL for other readers.
    ADD COLUMN IF NOT EXISTS navigation jsonb,
    -- Why there is no answer, where there is none.
    ADD COLUMN IF NOT EXISTS no_answer text,
    -- What the navigation came to.
    ADD COLUMN IF NOT EXISTS statistics jsonb;
GRANT UPDATE (no_answer, statistics) ON answer TO palimpsest_app;
"""

#: Outside a transaction, so that questions can be asked meanwhile.
ANSWERS_BY_MEMORY = """
CREATE INDEX CONCURRENTLY answer_by_memory
    ON answer (session_key, memory_id, created_at, answer_id)
"""

TRAJECTORIES = """
CREATE TABLE IF NOT EXISTS trajectory_event (
    session_key uuid NOT NULL,
    answer_id uuid NOT NULL,
    ordinal integer NOT NULL,
    tenant_id uuid NOT NULL,
    event jsonb NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (session_key, answer_id, ordinal),
    CONSTRAINT trajectory_event_answer_fkey FOREIGN KEY (session_key, answer_id)
        REFERENCES answer (session_key, answer_id)
);
"""

_OF_TENANT = """
ALTER TABLE {table} ENABLE ROW LEVEL SECURITY;
ALTER TABLE {table} FORCE ROW LEVEL SECURITY;
DROP POLICY IF EXISTS {table}_of_tenant ON {table};
CREATE POLICY {table}_of_tenant ON {table} TO palimpsest_app
    USING (tenant_id = current_setting('app.tenant')::uuid)
    WITH CHECK (tenant_id = current_setting('app.tenant')::uuid);
GRANT SELECT, INSERT ON {table} TO palimpsest_app;
"""


def upgrade() -> None:
    with op.get_context().autocommit_block():
        op.execute(KINDS)
        op.execute(NODES)
        op.execute(ANSWERS)
        op.execute(TRAJECTORIES)
        for table in ("tree_node", "trajectory_event"):
            op.execute(_OF_TENANT.format(table=table))
        # These take their time and block nobody, so they may also wait for their lock.
        op.execute("SET lock_timeout = 0")
        for statement in CHECKED:
            op.execute(statement)
        # One that was interrupted is there, and invalid.
        op.execute("DROP INDEX CONCURRENTLY IF EXISTS answer_by_memory")
        op.execute(ANSWERS_BY_MEMORY)
        # As `migrations.upgrade` has it; a RESET would be the server's.
        op.execute("SET lock_timeout = '5s'")
