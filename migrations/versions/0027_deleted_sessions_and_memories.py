"""Sessions and memories that are deleted: hidden at once, removed row by row afterwards.

A deletion sets `deleted_at`, which row-level security hides from everything but removals, and adds
a row to `removal`. Workers then remove what belongs to it in batches. A session's row stays as its
tombstone, with a raised incarnation.

The release before goes on working: what is deleted does not exist for it, and a name whose rows
are gone is taken, until this release creates the session anew. It removes no rows. Every statement
can run again.

Revision: 0027
After: 0026
"""

import time
from importlib import import_module

from alembic import op
from psycopg import errors
from sqlalchemy import text
from sqlalchemy.exc import OperationalError

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None

#: Rows that are hidden: a transaction that removes them says so, as it says its tenant.
_VISIBLE = """tenant_id = current_setting('app.tenant')::uuid
        AND (deleted_at IS NULL OR current_setting('app.removing', true) = 'on')"""

HIDDEN = f"""
ALTER TABLE session ADD COLUMN IF NOT EXISTS deleted_at timestamptz;
ALTER TABLE session ADD COLUMN IF NOT EXISTS first_epoch bigint NOT NULL DEFAULT 0;
ALTER TABLE memory ADD COLUMN IF NOT EXISTS deleted_at timestamptz;
ALTER POLICY session_of_tenant ON session
    USING ({_VISIBLE})
    WITH CHECK (tenant_id = current_setting('app.tenant')::uuid);
ALTER POLICY memory_of_tenant ON memory
    USING ({_VISIBLE})
    WITH CHECK (tenant_id = current_setting('app.tenant')::uuid);
GRANT UPDATE (deleted_at, first_epoch, incarnation, language, created_at) ON session
    TO palimpsest_app;
GRANT UPDATE (deleted_at) ON memory TO palimpsest_app;
-- Answers outlive the memory that they read.
GRANT UPDATE (memory_id) ON answer TO palimpsest_app
"""

REMOVAL = """
CREATE TABLE IF NOT EXISTS removal (
    session_key uuid NOT NULL,
    -- The session's own key, or the memory that is deleted alone.
    item_id uuid NOT NULL,
    tenant_id uuid NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    ready_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT removal_pkey PRIMARY KEY (session_key, item_id),
    CONSTRAINT removal_session_fkey FOREIGN KEY (session_key, tenant_id)
        REFERENCES session (session_key, tenant_id)
);
CREATE INDEX IF NOT EXISTS removal_turns ON removal (tenant_id, ready_at)
    WHERE ready_at > '-infinity';
ALTER TABLE removal ENABLE ROW LEVEL SECURITY;
ALTER TABLE removal FORCE ROW LEVEL SECURITY;
DROP POLICY IF EXISTS removal_of_tenant ON removal;
CREATE POLICY removal_of_tenant ON removal TO palimpsest_app
    USING (tenant_id = current_setting('app.tenant')::uuid)
    WITH CHECK (tenant_id = current_setting('app.tenant')::uuid);
DROP POLICY IF EXISTS removal_swept ON removal;
CREATE POLICY removal_swept ON removal FOR SELECT TO palimpsest_sweeper USING (true);
GRANT SELECT, INSERT, DELETE ON removal TO palimpsest_app;
GRANT UPDATE (ready_at) ON removal TO palimpsest_app;
GRANT SELECT ON removal TO palimpsest_sweeper
"""

#: What only a removal deletes: the role of the service could not before.
REMOVED = (
    "amendment",
    "answer",
    "answer_rating",
    "call",
    "call_sum",
    "chunk",
    "chunk_word",
    "dead_letter",
    "memory",
    "posting_block",
    "posting_list",
    "prism_base",
    "prism_snapshot",
    "prism_value",
    "producer",
    "rejection",
    "request",
    "revision",
    "schema_draft",
    "spend_sum",
    "state_levels",
    "state_vector",
    "trace_context",
    "trajectory_event",
    "tree_node",
)
_UNDER_WAY = "session_key IN (SELECT removal.session_key FROM removal)"
GUARD = f"""
DROP POLICY IF EXISTS {{table}}_removed ON {{table}};
CREATE POLICY {{table}}_removed ON {{table}} AS RESTRICTIVE FOR DELETE TO palimpsest_app
    USING ({_UNDER_WAY});
GRANT DELETE ON {{table}} TO palimpsest_app
"""
#: Calls of a memory that is deleted keep their figures and lose their texts.
CALLS = f"""
DROP POLICY IF EXISTS call_blanked ON call;
CREATE POLICY call_blanked ON call AS RESTRICTIVE FOR UPDATE TO palimpsest_app
    USING ({_UNDER_WAY});
GRANT UPDATE (memory_id, key, occasion, reply, failure, said) ON call TO palimpsest_app
"""

#: A row that goes is looked for in what may refer to it. Without these that look goes through all
#: rows of the memory, or of the session, once for each row that goes.
INDEXES = {
    "revision_children": "revision (session_key, memory_id, parent_revision)",
    "revision_by_chunk": "revision (session_key, last_chunk)",
    "revision_restoring": "revision (session_key, memory_id, restored_revision)"
    " WHERE restored_revision IS NOT NULL",
    "request_by_chunk": "request (session_key, last_position) WHERE last_position IS NOT NULL",
    "tree_node_next": "tree_node (session_key, memory_id, level, previous)",
    "tree_node_by_revision": "tree_node (session_key, memory_id, revision)",
}
IS_VALID = "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass('{index}')"

#: It gives way to what holds a table, and is tried again.
BRIEFLY = "SET lock_timeout = '500ms'"
TRIES, PAUSE_SECONDS = 60, 0.5

_PREVIOUS = import_module("migrations.versions.0018_the_log_is_the_queue")
_LANES = {
    **_PREVIOUS._LANES,
    "removals": (
        *("removal r", "removal", "r.item_id"),
        "r.ready_at > '-infinity'",
        *("r.ready_at <= v_now", "r.ready_at"),
    ),
}


def _cases(template: str) -> str:
    names = ("of", "kind", "item", "indexed", "due", "order")
    return "".join(
        template.format(lane=lane, **dict(zip(names, parts, strict=True)))
        for lane, parts in _LANES.items()
    )


#: As before, with one lane more.
TAKE_WORK = _PREVIOUS.TAKE_WORK.format(
    lock=_PREVIOUS._LOCK_KEY,
    next_tenant=_cases(_PREVIOUS._NEXT_TENANT),
    take=_cases(_PREVIOUS._TAKE),
)


def upgrade() -> None:
    with op.get_context().autocommit_block():
        op.execute("SET lock_timeout = 0")
        for index, rows in INDEXES.items():
            if not op.get_bind().execute(text(IS_VALID.format(index=index))).scalar():
                # One that was interrupted is there, and invalid.
                op.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {index}")
                op.execute(f"CREATE INDEX CONCURRENTLY {index} ON {rows}")
        # Each for itself, for a moment.
        op.execute(BRIEFLY)
        _execute(HIDDEN)
        _execute(REMOVAL)
        for table in REMOVED:
            _execute(GUARD.format(table=table))
        _execute(CALLS)
        _execute(TAKE_WORK)
        op.execute("SET lock_timeout = '5s'")


def _execute(statements: str) -> None:
    """Runs statements in one transaction, until their locks are free. Raises OperationalError."""
    for _ in range(TRIES):
        try:
            op.execute(statements)
            return
        except OperationalError as error:
            if not isinstance(error.orig, errors.LockNotAvailable):
                raise
        time.sleep(PAUSE_SECONDS)
    op.execute(statements)
