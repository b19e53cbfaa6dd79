"""Words of chunks that cannot be written are tried again ever later, and it is said why.

The release before tries as often as it did. Every statement can run again.

Revision: 0009
After: 0008
"""

from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

SESSIONS = """
ALTER TABLE session
    ADD COLUMN IF NOT EXISTS words_ready_at timestamptz NOT NULL DEFAULT now(),
    ADD COLUMN IF NOT EXISTS words_attempts integer NOT NULL DEFAULT 0,
    ADD COLUMN IF NOT EXISTS words_failure text NOT NULL DEFAULT '';
GRANT UPDATE (words_ready_at, words_attempts, words_failure) ON session TO palimpsest_app;
GRANT SELECT (words_ready_at) ON session TO palimpsest_sweeper;
"""


def upgrade() -> None:
    op.execute(SESSIONS)
