"""The system tenant lists the deletions of all tenants.

Revision: 0062
After: 0061
"""

from alembic import op

revision = "0062"
down_revision = "0061"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("GRANT SELECT (requested_at) ON erasure TO palimpsest_sweeper")
    op.execute("""
        CREATE INDEX IF NOT EXISTS erasure_tenants_by_time ON erasure (requested_at, erasure_id)
            WHERE kind = 'tenant'
    """)
