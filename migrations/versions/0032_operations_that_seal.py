"""Operations that seal a tree.

The release before requests none. Every statement can run again.

Revision: 0032
After: 0030
"""

from alembic import op

revision = "0032"
down_revision = "0031"
branch_labels = None
depends_on = None

KIND = """
ALTER TABLE operation
    DROP CONSTRAINT IF EXISTS operation_kind,
    ADD CONSTRAINT operation_kind
        CHECK (kind IN ('rebuild', 'consolidation', 'schema', 'seal')) NOT VALID;
ALTER TABLE operation VALIDATE CONSTRAINT operation_kind;
-- A tree is sealed by one operation at a time.
CREATE UNIQUE INDEX IF NOT EXISTS operation_seal ON operation (session_key, memory_id)
    WHERE kind = 'seal' AND state IS NULL
"""


def upgrade() -> None:
    op.execute(KIND)
