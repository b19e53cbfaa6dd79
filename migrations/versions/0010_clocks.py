"""Clocks: what the clock of each process says, against the database's.

The release before takes no notice, and its processes have no row. Every statement can run
again.

Revision: 0010
After: 0009
"""

from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

PROCESSES = """
CREATE TABLE IF NOT EXISTS process (
    process_id uuid PRIMARY KEY,
    kind text NOT NULL,
    host text NOT NULL,
    -- Its clock less the database's, and how long it took to compare them.
    clock_off_seconds double precision NOT NULL,
    round_trip_seconds double precision NOT NULL,
    seen_at timestamptz NOT NULL DEFAULT now()
);
GRANT SELECT, INSERT, UPDATE, DELETE ON process TO palimpsest_app;
"""


def upgrade() -> None:
    op.execute(PROCESSES)
