"""Results of requests: what a call with a request id returned, for a day.

The release before takes no notice: it writes rows of appends, which have no result and do not
expire, and refuses an append under the id of another method. Every statement can run again.

Revision: 0029
After: 0026
"""

from alembic import op

revision = "0029"
down_revision = "0028"
branch_labels = None
depends_on = None

RESULTS = """
-- The serialized response of the first call; NULL of appends, whose positions say it.
ALTER TABLE request ADD COLUMN IF NOT EXISTS response bytea;
-- Those that are swept, and no others.
DROP POLICY IF EXISTS request_swept ON request;
CREATE POLICY request_swept ON request TO palimpsest_sweeper USING (expires_at < now());
GRANT SELECT, DELETE ON request TO palimpsest_sweeper
"""

INDEX = """
CREATE INDEX CONCURRENTLY request_expiry ON request (expires_at) WHERE expires_at IS NOT NULL
"""


def upgrade() -> None:
    op.execute(RESULTS)
    with op.get_context().autocommit_block():
        # It takes its time and blocks nobody, so it may also wait for its locks.
        op.execute("SET lock_timeout = 0")
        # One that was interrupted is there, and invalid.
        op.execute("DROP INDEX CONCURRENTLY IF EXISTS request_expiry")
        op.execute(INDEX)
        # As `migrations.upgrade` has it; a RESET would be the server's.
        op.execute("SET lock_timeout = '5s'")
