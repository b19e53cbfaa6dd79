"""Revisions that undo what came from a source, and what memories read again.

The release before makes none, and reads the value after one as that of a fold.

Revision: 0050
After: 0049
"""

from alembic import op

revision = "0050"
down_revision = "0049"
branch_labels = None
depends_on = None

_KINDS = (
    "'create', 'step', 'skip', 'fold', 'edit', 'rollback', 'consolidation', 'schema',"
    " 'build', 'seal', 'episode', 'redaction', 'quarantine'"
)


def upgrade() -> None:
    # Without defaults: no row is rewritten.
    op.execute("ALTER TABLE memory ADD COLUMN IF NOT EXISTS reread_positions bigint[]")
    op.execute("GRANT UPDATE (reread_positions, entry_revision) ON memory TO palimpsest_app")
    op.execute("""
        ALTER TABLE revision
            ADD COLUMN IF NOT EXISTS undone bigint[],
            ADD COLUMN IF NOT EXISTS read_positions bigint[]
    """)
    op.execute("ALTER TABLE revision DROP CONSTRAINT IF EXISTS revision_kind")
    # Checked apart, so that writers do not wait for it.
    op.execute(
        f"ALTER TABLE revision ADD CONSTRAINT revision_kind CHECK (kind IN ({_KINDS})) NOT VALID"
    )
    op.execute("ALTER TABLE revision VALIDATE CONSTRAINT revision_kind")
