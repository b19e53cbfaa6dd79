"""Edits by hand, rollbacks, consolidation, schema changes, and fast reads of the past.

The release before goes on working: what it writes leaves the new columns at their
defaults, and what it does not know is only ever written by newer processes. Every
statement can run again, since a part of them commits by itself.

Revision: 0002
After: 0001
"""

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

#: None of these reads or rewrites a row: locks are held for an instant.
COLUMNS = """
ALTER TABLE memory
    -- The schema since it got more fields; NULL: the spec's.
    ADD COLUMN IF NOT EXISTS schema_source text,
    ADD COLUMN IF NOT EXISTS rebuilt_from text,
    ADD COLUMN IF NOT EXISTS flush_position bigint NOT NULL DEFAULT 0,
    ADD COLUMN IF NOT EXISTS consolidate_position bigint,
    ADD COLUMN IF NOT EXISTS consolidated_tokens bigint NOT NULL DEFAULT 0;

ALTER TABLE revision
    ADD COLUMN IF NOT EXISTS comment text NOT NULL DEFAULT '',
    ADD COLUMN IF NOT EXISTS restored_revision bigint,
    ADD COLUMN IF NOT EXISTS schema_source text;
ALTER TABLE revision DROP CONSTRAINT IF EXISTS revision_kind;
ALTER TABLE revision ADD CONSTRAINT revision_kind CHECK (kind IN (
    'create', 'step', 'skip', 'fold', 'edit', 'rollback', 'consolidation', 'schema'
)) NOT VALID;
ALTER TABLE revision DROP CONSTRAINT IF EXISTS revision_restored;
ALTER TABLE revision ADD CONSTRAINT revision_restored
    CHECK ((kind = 'rollback') = (restored_revision IS NOT NULL)) NOT VALID;
ALTER TABLE revision DROP CONSTRAINT IF EXISTS revision_schema;
ALTER TABLE revision ADD CONSTRAINT revision_schema
    CHECK ((kind = 'schema') = (schema_source IS NOT NULL)) NOT VALID;
ALTER TABLE revision DROP CONSTRAINT IF EXISTS revision_restored_fkey;
ALTER TABLE revision ADD CONSTRAINT revision_restored_fkey
    FOREIGN KEY (session_key, memory_id, restored_revision)
    REFERENCES revision (session_key, memory_id, revision) NOT VALID;

ALTER TABLE amendment DROP CONSTRAINT IF EXISTS amendment_op;
ALTER TABLE amendment ADD CONSTRAINT amendment_op
    CHECK (op IN ('add', 'update', 'remove')) NOT VALID;

ALTER TABLE prism_value ADD COLUMN IF NOT EXISTS unsaved_amendments integer NOT NULL DEFAULT 0;
"""

SNAPSHOT = """
CREATE TABLE IF NOT EXISTS prism_snapshot (
    session_key uuid NOT NULL,
    memory_id uuid NOT NULL,
    revision bigint NOT NULL,
    tenant_id uuid NOT NULL,
    value text NOT NULL,
    PRIMARY KEY (session_key, memory_id, revision),
    CONSTRAINT prism_snapshot_revision_fkey
        FOREIGN KEY (session_key, memory_id, revision) REFERENCES revision
);
ALTER TABLE prism_snapshot ENABLE ROW LEVEL SECURITY;
ALTER TABLE prism_snapshot FORCE ROW LEVEL SECURITY;
DROP POLICY IF EXISTS prism_snapshot_of_tenant ON prism_snapshot;
CREATE POLICY prism_snapshot_of_tenant ON prism_snapshot TO palimpsest_app
    USING (tenant_id = current_setting('app.tenant')::uuid)
    WITH CHECK (tenant_id = current_setting('app.tenant')::uuid);
GRANT SELECT, INSERT ON prism_snapshot TO palimpsest_app;
"""

GRANTS = """
GRANT UPDATE (schema_source, flush_position, consolidate_position, consolidated_tokens)
    ON memory TO palimpsest_app;
GRANT UPDATE (unsaved_amendments) ON prism_value TO palimpsest_app;
"""

#: A path has up to 20,000 characters and an index entry at most 2,700 bytes: the index
#: has the beginning, and who looks compares the rest.
PATHS = """
CREATE INDEX CONCURRENTLY amendment_by_path
ON amendment (session_key, memory_id, "left"(path, 500) COLLATE "C", revision, ordinal)
"""

ROLLBACKS = """
CREATE INDEX CONCURRENTLY revision_rollbacks
ON revision (session_key, memory_id, revision) WHERE kind = 'rollback'
"""

VALIDATED = {
    "revision": (
        "revision_kind",
        "revision_restored",
        "revision_schema",
        "revision_restored_fkey",
    ),
    "amendment": ("amendment_op",),
}


def upgrade() -> None:
    op.execute(COLUMNS)
    op.execute(SNAPSHOT)
    op.execute(GRANTS)
    with op.get_context().autocommit_block():
        # These take their time and block nobody, so they may also wait for their lock.
        op.execute("SET lock_timeout = 0")
        # A foreign key is validated by a query, which row-level security asks for a
        # tenant. What it then hides was written when the constraint was there already.
        op.execute("SET app.tenant = '00000000-0000-0000-0000-000000000000'")
        for table, constraints in VALIDATED.items():
            for constraint in constraints:
                op.execute(f"ALTER TABLE {table} VALIDATE CONSTRAINT {constraint}")
        for name, statement in (("amendment_by_path", PATHS), ("revision_rollbacks", ROLLBACKS)):
            # One that was interrupted is there, and invalid.
            op.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {name}")
            op.execute(statement)
        op.execute("RESET app.tenant")
        op.execute("RESET lock_timeout")
