"""Quarantines take trees and state memories back, and releases restore what was undone.

The release before writes no such revision, and reads the state after one as that of a rollback.

Revision: 0056
After: 0055
"""

from alembic import op

revision = "0056"
down_revision = "0055"
branch_labels = None
depends_on = None

_CHECKS = {
    # A quarantine may also go back, or on to where the memory was.
    "revision_range": "kind = 'quarantine' AND from_position >= 0 AND to_position >= 0"
    " OR (kind IN ('step', 'skip')) = (to_position > from_position)"
    " AND to_position >= from_position AND from_position >= 0",
    "revision_restored": "kind = 'quarantine'"
    " OR (kind = 'rollback') = (restored_revision IS NOT NULL)",
}
_INDEXES = {
    "revision_once": "UNIQUE INDEX {} ON revision (session_key, memory_id, from_position,"
    " (NULLIF(to_position > from_position AND NOT set_aside AND kind <> 'quarantine', false)))",
    "revision_rollbacks": "INDEX {} ON revision (session_key, memory_id, revision)"
    " WHERE restored_revision IS NOT NULL",
}


def upgrade() -> None:
    # A constant default rewrites no row.
    op.execute(
        "ALTER TABLE revision ADD COLUMN IF NOT EXISTS set_aside boolean NOT NULL DEFAULT false"
    )
    op.execute("GRANT UPDATE (set_aside) ON revision TO palimpsest_app")
    # A revision loses its content, or is set aside with it by a transaction that says so.
    op.execute("DROP POLICY IF EXISTS revision_redacted ON revision")
    op.execute("""
        CREATE POLICY revision_redacted ON revision AS RESTRICTIVE FOR UPDATE TO palimpsest_app
            USING (session_key IN (SELECT session_key FROM removal))
            WITH CHECK (kind IN ('redaction', 'schema') AND comment = '' OR session_key IN (
                SELECT session_key FROM removal
                WHERE item_id = '00000000-0000-0000-0000-000000000001'))
    """)
    for name, check in _CHECKS.items():
        op.execute(f"ALTER TABLE revision DROP CONSTRAINT IF EXISTS {name}")
        # Checked apart, so that writers do not wait for it.
        op.execute(f"ALTER TABLE revision ADD CONSTRAINT {name} CHECK ({check}) NOT VALID")
        op.execute(f"ALTER TABLE revision VALIDATE CONSTRAINT {name}")
    # Outside of a transaction, since steps go on. The old one counts until the new one is there.
    with op.get_context().autocommit_block():
        op.execute("SET lock_timeout = 0")
        for name, index in _INDEXES.items():
            op.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {name}_next")
            op.execute(f"CREATE {index}".replace("INDEX {}", f"INDEX CONCURRENTLY {name}_next"))
            op.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {name}")
            op.execute(f"ALTER INDEX {name}_next RENAME TO {name}")
        op.execute("SET lock_timeout = '5s'")
