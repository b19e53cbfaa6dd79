"""Filters of questions: which chunks an answer may cite; and which answers a worker has in hand.

The release before takes no notice: its answers have no filter. Every statement can run again.

Revision: 0033
After: 0032
"""

from alembic import op

revision = "0033"
down_revision = "0032"
branch_labels = None
depends_on = None

FILTER = "ALTER TABLE answer ADD COLUMN IF NOT EXISTS chunk_filter jsonb"
#: Whether a worker has an item in hand, of which the caller must know the keys: the table itself
#: is read in no tenant's name, since its rows have no tenant.
IS_CLAIMED = """
CREATE OR REPLACE FUNCTION is_claimed(p_session uuid, p_item uuid, p_kind text) RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT EXISTS (
        SELECT FROM claim
        WHERE session_key = p_session AND item_id = p_item AND kind = p_kind
    )
$$
"""


def upgrade() -> None:
    op.execute(FILTER)
    op.execute(IS_CLAIMED)
