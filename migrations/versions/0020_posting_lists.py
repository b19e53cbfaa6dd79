"""Posting lists of long sessions.

The release before neither reads nor writes them. Every statement can run again. Sessions that
are long already get their lists when they are searched, or with their next chunk.

Revision: 0020
After: 0018
"""

from alembic import op

revision = "0020"
down_revision = "0018"
branch_labels = None
depends_on = None

TABLES = """
CREATE TABLE IF NOT EXISTS posting_block (
    session_key uuid NOT NULL,
    last_position bigint NOT NULL,
    tenant_id uuid NOT NULL,
    first_position bigint NOT NULL,
    words bigint NOT NULL,
    PRIMARY KEY (session_key, last_position),
    CONSTRAINT posting_block_session_fkey FOREIGN KEY (session_key, tenant_id)
        REFERENCES session (session_key, tenant_id),
    CONSTRAINT posting_block_length CHECK (last_position - first_position < 65536)
);
CREATE TABLE IF NOT EXISTS posting_list (
    session_key uuid NOT NULL,
    key text COLLATE "C" NOT NULL,
    last_position bigint NOT NULL,
    tenant_id uuid NOT NULL,
    words text[] NOT NULL,
    groups bytea[] NOT NULL,
    places bytea[] NOT NULL,
    PRIMARY KEY (session_key, key, last_position),
    CONSTRAINT posting_list_block_fkey FOREIGN KEY (session_key, last_position)
        REFERENCES posting_block (session_key, last_position)
);
-- Places hardly become fewer by compression, and are read often.
ALTER TABLE posting_list ALTER COLUMN places SET STORAGE EXTERNAL;
"""

_OF_TENANT = """
ALTER TABLE {table} ENABLE ROW LEVEL SECURITY;
ALTER TABLE {table} FORCE ROW LEVEL SECURITY;
DROP POLICY IF EXISTS {table}_of_tenant ON {table};
CREATE POLICY {table}_of_tenant ON {table} TO palimpsest_app
    USING (tenant_id = current_setting('app.tenant')::uuid)
    WITH CHECK (tenant_id = current_setting('app.tenant')::uuid);
GRANT SELECT, INSERT ON {table} TO palimpsest_app;
"""


def upgrade() -> None:
    op.execute(TABLES)
    for table in ("posting_block", "posting_list"):
        op.execute(_OF_TENANT.format(table=table))
