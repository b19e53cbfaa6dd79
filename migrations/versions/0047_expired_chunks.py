"""How far the chunks of a session have expired.

The release before expires none, and reads expired ones as any tombstones.

Revision: 0047
After: 0046
"""

from alembic import op

revision = "0047"
down_revision = "0046"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(
        "ALTER TABLE session ADD COLUMN IF NOT EXISTS expired_position bigint NOT NULL DEFAULT 0"
    )
    op.execute("GRANT UPDATE (expired_position) ON session TO palimpsest_app")
    op.execute("GRANT UPDATE (words) ON posting_block TO palimpsest_app")
