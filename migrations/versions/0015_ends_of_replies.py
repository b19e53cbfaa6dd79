"""Calls say how their reply ended, and how much of it was thinking.

The release before writes none of it. Every statement can run again.

Revision: 0015
After: 0014
"""

from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

CALLS = """
ALTER TABLE call
    ADD COLUMN IF NOT EXISTS reasoning_tokens bigint,
    ADD COLUMN IF NOT EXISTS ended text,
    ADD COLUMN IF NOT EXISTS said text
"""


def upgrade() -> None:
    op.execute(CALLS)
