"""Operators list the policies of retention of all tenants.

The release before does not read them.

Revision: 0049
After: 0048
"""

from alembic import op

revision = "0049"
down_revision = "0048"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("GRANT SELECT (retention) ON tenant TO palimpsest_sweeper")
