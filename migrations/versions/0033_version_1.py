"""The schema of version 1: the SQL files of migrations/schema, in the order of their names.

All of it is one transaction: a migration that was interrupted has left nothing.

Revision: 0033
After: nothing
"""

from pathlib import Path

from alembic import op

revision = "0033"
down_revision = None
branch_labels = None
depends_on = None

SCHEMA = Path(__file__).parent.parent / "schema"


def upgrade() -> None:
    for path in sorted(SCHEMA.glob("*.sql")):
        # As it is written: neither a colon nor a percent sign in it names a parameter.
        op.get_bind().exec_driver_sql(
            path.read_text(encoding="utf-8"), execution_options={"no_parameters": True}
        )
