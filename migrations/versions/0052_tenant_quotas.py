"""Quotas of tenants.

The release before enforces none.

Revision: 0052
After: 0051
"""

from alembic import op

revision = "0052"
down_revision = "0051"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("""
        CREATE TABLE IF NOT EXISTS tenant_quota (
            tenant_id uuid NOT NULL,
            requests_per_second bigint,
            chunks_per_second bigint,
            bytes_per_second bigint,
            concurrent_asks bigint,
            concurrent_streams bigint,
            sessions bigint,
            memories bigint,
            stored_bytes bigint,
            CONSTRAINT tenant_quota_pkey PRIMARY KEY (tenant_id),
            CONSTRAINT tenant_quota_tenant_fkey FOREIGN KEY (tenant_id) REFERENCES tenant
        )
    """)
    op.execute("ALTER TABLE tenant_quota ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY")
    op.execute("DROP POLICY IF EXISTS tenant_quota_of_tenant ON tenant_quota")
    op.execute("""
        CREATE POLICY tenant_quota_of_tenant ON tenant_quota TO palimpsest_app
            USING (tenant_id = current_setting('app.tenant')::uuid)
            WITH CHECK (tenant_id = current_setting('app.tenant')::uuid)
    """)
    op.execute("DROP POLICY IF EXISTS tenant_quota_read ON tenant_quota")
    op.execute("""
        CREATE POLICY tenant_quota_read ON tenant_quota FOR SELECT TO palimpsest_sweeper
            USING (true)
    """)
    op.execute("GRANT SELECT, INSERT, UPDATE, DELETE ON tenant_quota TO palimpsest_app")
    op.execute("GRANT SELECT ON tenant_quota TO palimpsest_sweeper")
