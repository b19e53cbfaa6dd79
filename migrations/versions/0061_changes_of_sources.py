"""Quarantines and releases that a memory has yet to apply.

The release before neither writes nor reads them: its workers go on with such a memory as if the
source had been quarantined a little later.

Revision: 0061
After: 0060
"""

from alembic import op

revision = "0061"
down_revision = "0060"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # A constant default rewrites no row.
    op.execute("""
        ALTER TABLE memory
            ADD COLUMN IF NOT EXISTS source_changes jsonb,
            ADD COLUMN IF NOT EXISTS has_source_changes boolean NOT NULL DEFAULT false
    """)
    op.execute("GRANT UPDATE (source_changes, has_source_changes) ON memory TO palimpsest_app")
    op.execute("DROP POLICY IF EXISTS memory_changing ON memory")
    op.execute("""
        CREATE POLICY memory_changing ON memory FOR SELECT TO palimpsest_sweeper
            USING (has_source_changes)
    """)
    op.execute("GRANT SELECT (has_source_changes) ON memory TO palimpsest_sweeper")
    op.execute("""
        CREATE INDEX IF NOT EXISTS memory_changing ON memory (tenant_id, session_key)
            WHERE has_source_changes
    """)
