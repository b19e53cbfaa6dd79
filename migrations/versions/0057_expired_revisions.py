"""Revisions whose state has expired, and up to which one each memory is thinned.

The release before removes no state, so that it finds none that has expired until a policy has
`history_days`.

Revision: 0057
After: 0056
"""

from alembic import op

revision = "0057"
down_revision = "0056"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Constant defaults rewrite no row.
    op.execute(
        "ALTER TABLE memory ADD COLUMN IF NOT EXISTS thinned_revision bigint NOT NULL DEFAULT 0"
    )
    op.execute("GRANT UPDATE (thinned_revision) ON memory TO palimpsest_app")
    op.execute(
        "ALTER TABLE revision ADD COLUMN IF NOT EXISTS expired boolean NOT NULL DEFAULT false"
    )
    op.execute("GRANT UPDATE (expired) ON revision TO palimpsest_app")
