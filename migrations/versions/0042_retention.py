"""Policies of retention, of tenants and sessions, and the progress of what applies them.

The release before knows none of it, and nothing expires there.

Revision: 0042
After: 0041
"""

from alembic import op

revision = "0042"
down_revision = "0041"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # A constant default rewrites no row.
    op.execute("ALTER TABLE tenant ADD COLUMN IF NOT EXISTS retention jsonb NOT NULL DEFAULT '{}'")
    op.execute("GRANT UPDATE (retention) ON tenant TO palimpsest_app")
    op.execute(
        "ALTER TABLE session ADD COLUMN IF NOT EXISTS retention jsonb NOT NULL DEFAULT '{}',"
        " ADD COLUMN IF NOT EXISTS trajectories_expired_at timestamptz"
    )
    op.execute("GRANT UPDATE (retention, trajectories_expired_at) ON session TO palimpsest_app")
    op.execute("""
        CREATE TABLE IF NOT EXISTS retention_turn (
            tenant_id uuid NOT NULL,
            ready_at timestamptz NOT NULL DEFAULT now(),
            lease_id uuid,
            after_name text NOT NULL DEFAULT '',
            created_at timestamptz NOT NULL DEFAULT now(),
            ended_at timestamptz,
            CONSTRAINT retention_turn_pkey PRIMARY KEY (tenant_id),
            CONSTRAINT retention_turn_tenant_fkey FOREIGN KEY (tenant_id)
                REFERENCES tenant ON DELETE CASCADE
        ) WITH (fillfactor = 50)
    """)
    op.execute("ALTER TABLE retention_turn ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY")
    op.execute("DROP POLICY IF EXISTS retention_turn_of_tenant ON retention_turn")
    op.execute("""
        CREATE POLICY retention_turn_of_tenant ON retention_turn TO palimpsest_app
            USING (tenant_id = current_setting('app.tenant')::uuid)
            WITH CHECK (tenant_id = current_setting('app.tenant')::uuid)
    """)
    # Workers look for the tenants whose turn it is.
    op.execute("DROP POLICY IF EXISTS retention_turn_due ON retention_turn")
    op.execute("""
        CREATE POLICY retention_turn_due ON retention_turn FOR SELECT TO palimpsest_sweeper
            USING (true)
    """)
    op.execute("GRANT SELECT, INSERT, UPDATE ON retention_turn TO palimpsest_app")
    op.execute("GRANT SELECT (tenant_id, ready_at) ON retention_turn TO palimpsest_sweeper")
    # Outside of a transaction, since appends and calls go on. One that was interrupted left an
    # index that is not valid.
    with op.get_context().autocommit_block():
        op.execute("SET lock_timeout = 0")
        op.execute("DROP INDEX CONCURRENTLY IF EXISTS session_with_retention")
        op.execute("""
            CREATE INDEX CONCURRENTLY session_with_retention
                ON session (tenant_id, name COLLATE "C")
                WHERE retention <> '{}'::jsonb AND name > ''
        """)
        op.execute("DROP INDEX CONCURRENTLY IF EXISTS call_with_text")
        op.execute("""
            CREATE INDEX CONCURRENTLY call_with_text ON call (session_key, created_at)
                WHERE octet_length(coalesce(reply, failure)) > 0
        """)
        op.execute("SET lock_timeout = '5s'")
