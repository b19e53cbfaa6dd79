"""Tables of exports and imports of sessions.

The release before knows none of them, and has to see none: an import that is under way looks to it
like a session that is being deleted.

Revision: 0043
After: 0042
"""

from alembic import op

revision = "0043"
down_revision = "0042"
branch_labels = None
depends_on = None

_TABLES = {
    "session_export": """
        session_key uuid NOT NULL,
        export_id uuid NOT NULL,
        tenant_id uuid NOT NULL,
        head bigint NOT NULL,
        cut jsonb NOT NULL,
        created_at timestamptz NOT NULL DEFAULT now(),
        finished_at timestamptz,
        CONSTRAINT session_export_pkey PRIMARY KEY (session_key, export_id),
    """,
    "session_import": """
        session_key uuid NOT NULL,
        tenant_id uuid NOT NULL,
        export_id uuid NOT NULL,
        source_session text NOT NULL,
        exported_at timestamptz NOT NULL,
        head bigint NOT NULL,
        memories bigint NOT NULL,
        line bigint NOT NULL,
        digest bytea NOT NULL,
        counts jsonb NOT NULL DEFAULT '{}',
        created_at timestamptz NOT NULL DEFAULT now(),
        finished_at timestamptz,
        CONSTRAINT session_import_pkey PRIMARY KEY (session_key),
        CONSTRAINT session_import_line CHECK (line >= 1),
    """,
    "imported_usage": """
        session_key uuid NOT NULL,
        tenant_id uuid NOT NULL,
        owner_id uuid NOT NULL,
        day date NOT NULL,
        purpose text NOT NULL,
        model text NOT NULL,
        residual text NOT NULL,
        failed boolean NOT NULL,
        calls bigint NOT NULL,
        input_tokens bigint NOT NULL,
        predicted_cached_tokens bigint NOT NULL,
        reported_cached_tokens bigint NOT NULL,
        reported_calls bigint NOT NULL,
        cached_tokens bigint NOT NULL,
        cache_write_tokens bigint NOT NULL,
        output_tokens bigint NOT NULL,
        cost_micro_usd bigint NOT NULL,
        priced_calls bigint NOT NULL,
        CONSTRAINT imported_usage_pkey PRIMARY KEY
            (session_key, owner_id, day, purpose, model, residual, failed),
    """,
}


def upgrade() -> None:
    op.execute("ALTER TABLE session ADD COLUMN IF NOT EXISTS imported_from jsonb")
    op.execute("GRANT UPDATE (imported_from) ON session TO palimpsest_app")
    for table, columns in _TABLES.items():
        op.execute(f"""
            CREATE TABLE IF NOT EXISTS {table} ({columns}
                CONSTRAINT {table}_session_fkey FOREIGN KEY (session_key, tenant_id)
                    REFERENCES session (session_key, tenant_id)
            )
        """)
        op.execute(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY")
        op.execute(f"DROP POLICY IF EXISTS {table}_of_tenant ON {table}")
        op.execute(f"""
            CREATE POLICY {table}_of_tenant ON {table} TO palimpsest_app
                USING (tenant_id = current_setting('app.tenant')::uuid)
                WITH CHECK (tenant_id = current_setting('app.tenant')::uuid)
        """)
        op.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {table} TO palimpsest_app")
