"""Whether a tenant has rules for sources is found at once.

The release before neither needs nor disturbs it.

Revision: 0055
After: 0054
"""

from alembic import op

revision = "0055"
down_revision = "0054"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # At most a few hundred rows for each tenant and session: built at once.
    op.execute("CREATE INDEX IF NOT EXISTS source_trust_tenant ON source_trust (tenant_id)")
