"""Says of answers that failed whether a budget was the reason.

Revision: 0063
After: 0062

Those that a worker of the release before fails are of the other failures.
"""

from alembic import op

revision = "0063"
down_revision = "0062"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(
        "ALTER TABLE answer ADD COLUMN IF NOT EXISTS over_budget boolean NOT NULL DEFAULT false"
    )
    op.execute("GRANT UPDATE (over_budget) ON answer TO palimpsest_app")
