"""Metadata of sessions.

A session without any has an empty object, as those have that the release before creates; it
reads none and changes none. Every statement can run again.

Revision: 0031
After: 0030
"""

from alembic import op

revision = "0031"
down_revision = "0030"
branch_labels = None
depends_on = None

METADATA = """
ALTER TABLE session ADD COLUMN IF NOT EXISTS metadata jsonb NOT NULL DEFAULT '{}';
GRANT UPDATE (metadata) ON session TO palimpsest_app
"""


def upgrade() -> None:
    op.execute(METADATA)
