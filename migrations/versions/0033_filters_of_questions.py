"""Filters of questions: which chunks an answer may cite; and which answers a worker has in hand.

The release before takes no notice: its answers have no filter. Every statement can run again.

Revision: 0033
After: 0030
"""

from alembic import op

revision = "0033"
down_revision = "0032"
branch_labels = None
depends_on = None

FILTER = """
ALTER TABLE answer ADD COLUMN IF NOT EXISTS chunk_filter jsonb;
-- Whether a worker has an answer in hand; which one is the workers' own.
GRANT SELECT (session_key, item_id, kind) ON claim TO palimpsest_app
"""


def upgrade() -> None:
    op.execute(FILTER)
