"""A quarantine keeps that a source had no rule.

A server of the release before cannot release such a quarantine: the next one can.

Revision: 0059
After: 0058
"""

from alembic import op

revision = "0059"
down_revision = "0058"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("""
        ALTER TABLE source_trust
            DROP CONSTRAINT IF EXISTS source_trust_before,
            ADD CONSTRAINT source_trust_before CHECK (
                trust_before IS NULL OR (trust = 'blocked'
                AND trust_before IN ('trusted', 'unverified', 'blocked', 'none')))
    """)
