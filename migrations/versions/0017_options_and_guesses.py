"""Questions keep their options, and answers say whether they are guesses, or cut off.

The release before writes none of it: its answers are neither. Every statement can run again.

Revision: 0017
After: 0016
"""

from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None

ANSWERS = """
ALTER TABLE answer
    ADD COLUMN IF NOT EXISTS options jsonb NOT NULL DEFAULT '[]',
    ADD COLUMN IF NOT EXISTS guessed boolean NOT NULL DEFAULT false,
    ADD COLUMN IF NOT EXISTS truncated boolean NOT NULL DEFAULT false;
GRANT UPDATE (guessed, truncated) ON answer TO palimpsest_app
"""


def upgrade() -> None:
    op.execute(ANSWERS)
