"""Levels of trust in sources.

The release before neither reads nor writes them, and has no chunk that is not trusted.

Revision: 0040
After: 0039
"""

from alembic import op

revision = "0040"
down_revision = "0039"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("""
        CREATE TABLE IF NOT EXISTS source_trust (
            session_key uuid NOT NULL,
            tenant_id uuid NOT NULL,
            source text NOT NULL,
            trust text NOT NULL CONSTRAINT source_trust_level
                CHECK (trust IN ('trusted', 'unverified', 'blocked')),
            trust_before text,
            created_at timestamptz NOT NULL DEFAULT now(),
            updated_at timestamptz NOT NULL DEFAULT now(),
            PRIMARY KEY (session_key, source),
            CONSTRAINT source_trust_before CHECK (
                trust_before IS NULL OR (trust = 'blocked'
                AND trust_before IN ('trusted', 'unverified', 'blocked')))
        )
    """)
    op.execute("ALTER TABLE source_trust ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY")
    op.execute("DROP POLICY IF EXISTS source_trust_of_tenant ON source_trust")
    op.execute("""
        CREATE POLICY source_trust_of_tenant ON source_trust TO palimpsest_app
            USING (tenant_id = current_setting('app.tenant')::uuid)
            WITH CHECK (tenant_id = current_setting('app.tenant')::uuid)
    """)
    op.execute("""
        GRANT SELECT, INSERT, UPDATE (trust, trust_before, updated_at), DELETE
        ON source_trust TO palimpsest_app
    """)
