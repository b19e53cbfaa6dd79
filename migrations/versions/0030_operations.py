"""Operations: long work that clients requested, and how it ended.

How far one is that has not ended is said by the memory, or by the schema draft, that it works
on. The release before takes no notice: what it requests has no operation. Every statement can
run again.

Revision: 0030
After: 0029
"""

from importlib import import_module

from alembic import op

revision = "0030"
down_revision = "0029"
branch_labels = None
depends_on = None

OPERATIONS = """
CREATE TABLE IF NOT EXISTS operation (
    session_key uuid NOT NULL,
    -- Of a schema, its draft.
    operation_id uuid NOT NULL,
    tenant_id uuid NOT NULL,
    kind text NOT NULL
        CONSTRAINT operation_kind CHECK (kind IN ('rebuild', 'consolidation', 'schema')),
    -- What it changes or builds; NULL and empty of a schema.
    memory_id uuid,
    memory_name text NOT NULL,
    -- Everything up to here is to be read; 0 of a schema.
    goal bigint NOT NULL,
    -- How it ended, as it was first reported; NULL before.
    state text CONSTRAINT operation_state CHECK (state IN ('done', 'failed', 'cancelled')),
    -- Why it failed: reason, message and metadata.
    error jsonb,
    ended_at timestamptz,
    created_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT operation_pkey PRIMARY KEY (session_key, operation_id),
    CONSTRAINT operation_session_fkey FOREIGN KEY (session_key, tenant_id)
        REFERENCES session (session_key, tenant_id) ON DELETE CASCADE,
    CONSTRAINT operation_memory CHECK ((kind = 'schema') = (memory_id IS NULL)),
    CONSTRAINT operation_end CHECK ((state IS NULL) = (ended_at IS NULL)),
    CONSTRAINT operation_error CHECK ((state = 'failed') IS TRUE = (error IS NOT NULL))
);
-- A memory is consolidated by one operation at a time.
CREATE UNIQUE INDEX IF NOT EXISTS operation_consolidation ON operation (session_key, memory_id)
    WHERE kind = 'consolidation' AND state IS NULL;
CREATE INDEX IF NOT EXISTS operation_by_session
    ON operation (session_key, created_at, operation_id);
CREATE INDEX IF NOT EXISTS operation_by_tenant ON operation (tenant_id, created_at, operation_id);
CREATE INDEX IF NOT EXISTS operation_age ON operation (created_at);
ALTER TABLE operation ENABLE ROW LEVEL SECURITY;
ALTER TABLE operation FORCE ROW LEVEL SECURITY;
DROP POLICY IF EXISTS operation_of_tenant ON operation;
CREATE POLICY operation_of_tenant ON operation TO palimpsest_app
    USING (tenant_id = current_setting('app.tenant')::uuid)
    WITH CHECK (tenant_id = current_setting('app.tenant')::uuid);
GRANT SELECT, INSERT, UPDATE (goal, state, error, ended_at) ON operation TO palimpsest_app;
-- Those that are swept, and no others.
DROP POLICY IF EXISTS operation_swept ON operation;
CREATE POLICY operation_swept ON operation TO palimpsest_sweeper
    USING (created_at < now() - interval '30 days');
GRANT SELECT, DELETE ON operation TO palimpsest_sweeper
"""

#: They go with their session, as its other rows do.
_REMOVED = import_module("migrations.versions.0027_deleted_sessions_and_memories").GUARD


def upgrade() -> None:
    op.execute(OPERATIONS)
    op.execute(_REMOVED.format(table="operation"))
