"""Sessions say which memory their first append makes.

Those that exist, and those that the release before creates, get none.

Revision: 0036
After: 0035
"""

from alembic import op

revision = "0036"
down_revision = "0035"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(
        # A check would read all rows while appends wait.
        "ALTER TABLE session ADD COLUMN IF NOT EXISTS default_memory text NOT NULL DEFAULT 'none'"
    )
    op.execute("GRANT UPDATE (default_memory) ON session TO palimpsest_app")
