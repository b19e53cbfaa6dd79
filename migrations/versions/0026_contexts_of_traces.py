"""Contexts of traces: which span an append, a commit and a question belong to.

Only of what is sampled, and for a day. Without a write-ahead log, as what workers have in hand: a
crash of the server takes links between traces with it, and nothing else.

The release before takes no notice: what it appends, commits and asks has no links. Every statement
can run again.

Revision: 0026
After: 0025
"""

from alembic import op

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None

CONTEXTS = """
CREATE UNLOGGED TABLE IF NOT EXISTS trace_context (
    session_key uuid NOT NULL,
    -- The session itself of chunks that were appended, a memory of what was committed to it, or
    -- what is to be made: an answer.
    owner_id uuid NOT NULL,
    -- Positions in the log; of a commit both are its revision, of what is to be made both are 0.
    from_position bigint NOT NULL,
    to_position bigint NOT NULL,
    tenant_id uuid NOT NULL,
    -- As W3C Trace Context has them.
    trace_id bytea NOT NULL CONSTRAINT trace_context_trace CHECK (octet_length(trace_id) = 16),
    span_id bytea NOT NULL CONSTRAINT trace_context_span CHECK (octet_length(span_id) = 8),
    flags smallint NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (session_key, owner_id, to_position),
    CONSTRAINT trace_context_session_fkey FOREIGN KEY (session_key, tenant_id)
        REFERENCES session (session_key, tenant_id) ON DELETE CASCADE,
    CONSTRAINT trace_context_positions CHECK (0 <= from_position AND from_position <= to_position)
);
CREATE INDEX IF NOT EXISTS trace_context_age ON trace_context (created_at);
ALTER TABLE trace_context ENABLE ROW LEVEL SECURITY;
ALTER TABLE trace_context FORCE ROW LEVEL SECURITY;
DROP POLICY IF EXISTS trace_context_of_tenant ON trace_context;
CREATE POLICY trace_context_of_tenant ON trace_context TO palimpsest_app
    USING (tenant_id = current_setting('app.tenant')::uuid)
    WITH CHECK (tenant_id = current_setting('app.tenant')::uuid);
GRANT SELECT, INSERT ON trace_context TO palimpsest_app;
-- Those that are swept, and no others.
DROP POLICY IF EXISTS trace_context_swept ON trace_context;
CREATE POLICY trace_context_swept ON trace_context TO palimpsest_sweeper
    USING (created_at < now() - interval '1 day');
GRANT SELECT, DELETE ON trace_context TO palimpsest_sweeper
"""


def upgrade() -> None:
    op.execute(CONTEXTS)
