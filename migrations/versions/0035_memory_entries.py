"""Entries of memories, which SearchMemories finds.

The release before writes none: workers of this one write what is missing.

Revision: 0035
After: 0033
"""

from alembic import op

revision = "0035"
down_revision = "0033"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(
        "ALTER TABLE memory ADD COLUMN IF NOT EXISTS entry_revision bigint NOT NULL DEFAULT 0"
    )
    op.execute("GRANT UPDATE (entry_revision) ON memory TO palimpsest_app")
    op.execute("GRANT SELECT (revision, entry_revision) ON memory TO palimpsest_sweeper")
    # Only in a transaction that looks for these: no other sees more memories than before.
    op.execute("DROP POLICY IF EXISTS memory_unentered ON memory")
    op.execute("""
        CREATE POLICY memory_unentered ON memory FOR SELECT TO palimpsest_sweeper
            USING (
                current_setting('app.unentered', true) = 'on'
                AND entry_revision <> revision AND deleted_at IS NULL
            )
    """)
    op.execute("""
        CREATE TABLE IF NOT EXISTS memory_entry (
            session_key uuid NOT NULL,
            memory_id uuid NOT NULL,
            entry_id uuid NOT NULL,
            tenant_id uuid NOT NULL,
            path text NOT NULL,
            part integer NOT NULL,
            value text NOT NULL,
            words tsvector NOT NULL,
            length integer NOT NULL,
            revision bigint NOT NULL,
            first_position bigint NOT NULL,
            last_position bigint NOT NULL,
            model text,
            embedding real[],
            CONSTRAINT memory_entry_pkey PRIMARY KEY (session_key, memory_id, entry_id),
            CONSTRAINT memory_entry_memory_fkey FOREIGN KEY (session_key, memory_id)
                REFERENCES memory ON DELETE CASCADE,
            CONSTRAINT memory_entry_positions
                CHECK (0 <= first_position AND first_position <= last_position),
            CONSTRAINT memory_entry_embedded CHECK ((model IS NULL) = (embedding IS NULL))
        ) WITH (fillfactor = 90)
    """)
    # The numbers of a vector are not smaller when they are compressed.
    op.execute("ALTER TABLE memory_entry ALTER COLUMN embedding SET STORAGE EXTERNAL")
    op.execute("""
        CREATE INDEX IF NOT EXISTS memory_entry_unembedded ON memory_entry (session_key)
            WHERE model IS NULL
    """)
    op.execute("ALTER TABLE memory_entry ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY")
    op.execute("DROP POLICY IF EXISTS memory_entry_of_tenant ON memory_entry")
    op.execute("""
        CREATE POLICY memory_entry_of_tenant ON memory_entry TO palimpsest_app
            USING (tenant_id = current_setting('app.tenant')::uuid)
            WITH CHECK (tenant_id = current_setting('app.tenant')::uuid)
    """)
    op.execute("DROP POLICY IF EXISTS memory_entry_unembedded ON memory_entry")
    op.execute("""
        CREATE POLICY memory_entry_unembedded ON memory_entry FOR SELECT TO palimpsest_sweeper
            USING (model IS NULL)
    """)
    # Not for removals alone: a revision takes entries away.
    op.execute("GRANT SELECT, INSERT, UPDATE, DELETE ON memory_entry TO palimpsest_app")
    op.execute("GRANT SELECT (session_key, tenant_id, model) ON memory_entry TO palimpsest_sweeper")
