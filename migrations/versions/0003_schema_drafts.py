"""Schemas that are generated, and calls that belong to no memory.

The release before goes on working: it writes every call with its memory, and does not
look at the new table.

Revision: 0003
After: 0002
"""

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

DRAFTS = """
CREATE TABLE schema_draft (
    session_key uuid NOT NULL CONSTRAINT schema_draft_session_fkey REFERENCES session,
    draft_id uuid NOT NULL,
    tenant_id uuid NOT NULL,
    domain text NOT NULL,
    example_query text NOT NULL,
    model text NOT NULL,
    status text NOT NULL DEFAULT 'pending'
        CONSTRAINT schema_draft_status CHECK (status IN ('pending', 'complete', 'failed')),
    source text NOT NULL DEFAULT '',
    replies integer NOT NULL DEFAULT 0,
    failure text NOT NULL DEFAULT '',
    attempts integer NOT NULL DEFAULT 0,
    ready_at timestamptz NOT NULL DEFAULT now(),
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (session_key, draft_id)
);
CREATE INDEX schema_draft_runnable ON schema_draft (ready_at) WHERE status = 'pending';
"""

SEPARATION = """
ALTER TABLE schema_draft ENABLE ROW LEVEL SECURITY;
ALTER TABLE schema_draft FORCE ROW LEVEL SECURITY;
CREATE POLICY schema_draft_of_tenant ON schema_draft TO palimpsest_app
    USING (tenant_id = current_setting('app.tenant')::uuid)
    WITH CHECK (tenant_id = current_setting('app.tenant')::uuid);
GRANT SELECT, INSERT ON schema_draft TO palimpsest_app;
GRANT UPDATE (status, source, replies, model, failure, attempts, ready_at)
    ON schema_draft TO palimpsest_app;
CREATE POLICY schema_draft_runnable ON schema_draft FOR SELECT TO palimpsest_sweeper
    USING (status = 'pending');
GRANT SELECT (session_key, draft_id, tenant_id, status, ready_at)
    ON schema_draft TO palimpsest_sweeper;
"""

#: MATCH SIMPLE, the default, lets a NULL pass; nothing is read or rewritten.
CALLS = "ALTER TABLE call ALTER COLUMN memory_id DROP NOT NULL"


def upgrade() -> None:
    op.execute(DRAFTS)
    op.execute(SEPARATION)
    op.execute(CALLS)
