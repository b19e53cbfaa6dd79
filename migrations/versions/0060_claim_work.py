"""The function `claim_work` as it is in 0045 now, for databases that had 0045 before.

Revision: 0060
After: 0059
"""

from alembic import op

revision = "0060"
down_revision = "0059"
branch_labels = None
depends_on = None


def upgrade() -> None:
    scripts = op.get_context().script
    assert scripts is not None, "a migration is one of scripts"
    turns = scripts.get_revision("0045").module
    turns.create_function(turns.CLAIM_WORK)
