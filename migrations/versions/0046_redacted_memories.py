"""Lets memories go back to before they read a chunk that is redacted.

The release before knows neither the new kind of revisions nor the new kind of operations, and
makes none.

Revision: 0046
After: 0045
"""

from alembic import op

revision = "0046"
down_revision = "0045"
branch_labels = None
depends_on = None

_REVISION_KINDS = (
    "'create', 'step', 'skip', 'fold', 'edit', 'rollback', 'consolidation', 'schema', 'build',"
    " 'seal', 'episode', 'redaction'"
)
_CHECKS = {
    ("revision", "revision_kind"): f"kind IN ({_REVISION_KINDS})",
    ("operation", "operation_kind"): (
        "kind IN ('rebuild', 'consolidation', 'schema', 'seal', 'redaction')"
    ),
    ("operation", "operation_memory"): ("(kind IN ('schema', 'redaction')) = (memory_id IS NULL)"),
}


def upgrade() -> None:
    # Constant defaults: no row is rewritten.
    op.execute("""
        ALTER TABLE redaction
            ADD COLUMN IF NOT EXISTS positions bigint[] NOT NULL DEFAULT '{}',
            ADD COLUMN IF NOT EXISTS since timestamptz,
            ADD COLUMN IF NOT EXISTS removed jsonb NOT NULL DEFAULT '{}',
            ADD COLUMN IF NOT EXISTS ended_at timestamptz
    """)
    op.execute("GRANT UPDATE (positions, removed, ended_at) ON redaction TO palimpsest_app")
    op.execute(
        "ALTER TABLE memory ADD COLUMN IF NOT EXISTS redacted_epoch bigint NOT NULL DEFAULT 0"
    )
    op.execute("GRANT UPDATE (redacted_epoch) ON memory TO palimpsest_app")
    for (table, name), check in _CHECKS.items():
        op.execute(f"ALTER TABLE {table} DROP CONSTRAINT IF EXISTS {name}")
        # Checked apart, so that writers do not wait for it.
        op.execute(f"ALTER TABLE {table} ADD CONSTRAINT {name} CHECK ({check}) NOT VALID")
        op.execute(f"ALTER TABLE {table} VALIDATE CONSTRAINT {name}")
    op.execute(
        "GRANT UPDATE (kind, from_position, to_position, digest, comment, restored_revision)"
        " ON revision TO palimpsest_app"
    )
    # Whatever a statement asks for, a revision can only lose its content.
    op.execute("DROP POLICY IF EXISTS revision_redacted ON revision")
    op.execute("""
        CREATE POLICY revision_redacted ON revision AS RESTRICTIVE FOR UPDATE TO palimpsest_app
            USING (session_key IN (SELECT session_key FROM removal))
            WITH CHECK (kind IN ('redaction', 'schema') AND comment = '')
    """)
    op.execute("GRANT UPDATE (cause) ON dead_letter TO palimpsest_app")
