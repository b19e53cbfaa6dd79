"""An index for the entries that were written last, which a recall begins with.

The release before has no such entries, so that the table is empty, or small.

Revision: 0037
After: 0036
"""

from alembic import op

revision = "0037"
down_revision = "0036"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("""
        CREATE INDEX IF NOT EXISTS memory_entry_newest ON memory_entry (session_key, revision)
    """)
