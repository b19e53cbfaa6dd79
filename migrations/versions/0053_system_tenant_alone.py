"""A worker looks for the work of other tenants only where there are any beside the system tenant.

Each deployment has that one. The release before works with either function.

Revision: 0053
After: 0052
"""

from alembic import op

revision = "0053"
down_revision = "0052"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("""
        DO $$ BEGIN
            EXECUTE replace(
                pg_get_functiondef('work_waits(uuid[], integer)'::regprocedure),
                'SELECT FROM tenant OFFSET 1',
                'SELECT FROM tenant
                    WHERE tenant_id <> ''9d5f4c6e-7a43-5d0b-8f0e-2f4f7d1a0002'' OFFSET 1'
            );
        END $$
    """)
