"""Rows of tenants that were deleted may be removed, and workers find what is left to remove.

The release before deletes no tenants.

Revision: 0044
After: 0043
"""

from alembic import op

revision = "0044"
down_revision = "0043"
branch_labels = None
depends_on = None

#: What a tenant has besides its sessions.
_TABLES = ("session", "api_key", "tenant_spend_sum", "retention_turn")


def upgrade() -> None:
    for table in _TABLES:
        op.execute(f"DROP POLICY IF EXISTS {table}_of_deleted_tenant ON {table}")
        op.execute(f"""
            CREATE POLICY {table}_of_deleted_tenant ON {table}
                AS RESTRICTIVE FOR DELETE TO palimpsest_app
                USING (tenant_id IN (SELECT tenant_id FROM tenant WHERE deleted_at IS NOT NULL))
        """)
        op.execute(f"GRANT DELETE ON {table} TO palimpsest_app")
    op.execute("GRANT SELECT (kind, completed_at) ON erasure TO palimpsest_sweeper")
    op.execute("""
        CREATE INDEX IF NOT EXISTS erasure_of_tenants ON erasure (tenant_id)
            WHERE kind = 'tenant' AND completed_at IS NULL
    """)
