"""Imports record the exports that they descend from.

The release before neither needs nor disturbs it: its imports have the one export alone.

Revision: 0058
After: 0057
"""

from alembic import op

revision = "0058"
down_revision = "0057"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("""
        ALTER TABLE session_import ADD COLUMN IF NOT EXISTS lineage uuid[] NOT NULL DEFAULT '{}'
    """)
    # A row for each imported session: built at once.
    op.execute("CREATE INDEX IF NOT EXISTS session_import_of_tenant ON session_import (tenant_id)")
