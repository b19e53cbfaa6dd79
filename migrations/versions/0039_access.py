"""Keys of the API, the audit log, and tenants that can be suspended.

The release before knows no keys and records no events; it serves suspended tenants.

Revision: 0039
After: 0038
"""

from alembic import op

revision = "0039"
down_revision = "0038"
branch_labels = None
depends_on = None

_OF_TENANT = """
    CREATE POLICY {table}_of_tenant ON {table} TO palimpsest_app
        USING (tenant_id = current_setting('app.tenant')::uuid)
        WITH CHECK (tenant_id = current_setting('app.tenant')::uuid)
"""


def upgrade() -> None:
    _tenants()
    _keys()
    _audit_log()


def _tenants() -> None:
    for column in (
        "display_name text NOT NULL DEFAULT ''",
        "suspended_at timestamptz",
        "deleted_at timestamptz",
    ):
        op.execute(f"ALTER TABLE tenant ADD COLUMN IF NOT EXISTS {column}")
    # The name of a deleted tenant may be used again, for another tenant.
    op.execute("""
        CREATE UNIQUE INDEX IF NOT EXISTS tenant_by_name ON tenant (name)
            WHERE deleted_at IS NULL
    """)
    op.execute("GRANT UPDATE (display_name, suspended_at, deleted_at) ON tenant TO palimpsest_app")
    op.execute("""
        GRANT SELECT (tenant_id, name, display_name, created_at, suspended_at, deleted_at)
            ON tenant TO palimpsest_sweeper
    """)
    # Its administrators manage tenants. In the role that row-level security lets write it.
    op.execute("SET LOCAL ROLE palimpsest_app")
    op.execute("SET LOCAL app.tenant = '9d5f4c6e-7a43-5d0b-8f0e-2f4f7d1a0002'")
    op.execute("""
        INSERT INTO tenant (tenant_id, name)
            VALUES ('9d5f4c6e-7a43-5d0b-8f0e-2f4f7d1a0002', 'system')
            ON CONFLICT DO NOTHING
    """)
    op.execute("RESET ROLE")


def _keys() -> None:
    op.execute("""
        CREATE TABLE IF NOT EXISTS api_key (
            tenant_id uuid NOT NULL,
            key_id text NOT NULL,
            display_name text NOT NULL DEFAULT '',
            secret_hash bytea NOT NULL,
            scopes text[] NOT NULL,
            session_prefix text NOT NULL DEFAULT '',
            created_at timestamptz NOT NULL DEFAULT now(),
            created_by text NOT NULL,
            replaces text NOT NULL DEFAULT '',
            expires_at timestamptz,
            revoked_at timestamptz,
            last_used_at timestamptz,
            CONSTRAINT api_key_pkey PRIMARY KEY (key_id),
            CONSTRAINT api_key_tenant_fkey FOREIGN KEY (tenant_id) REFERENCES tenant (tenant_id),
            CONSTRAINT api_key_hash CHECK (octet_length(secret_hash) = 32)
        )
    """)
    op.execute("""
        CREATE INDEX IF NOT EXISTS api_key_of_tenant ON api_key (tenant_id, created_at, key_id)
    """)
    op.execute("ALTER TABLE api_key ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY")
    op.execute("DROP POLICY IF EXISTS api_key_of_tenant ON api_key")
    op.execute(_OF_TENANT.format(table="api_key"))
    # A key is looked up before its tenant is known.
    op.execute("DROP POLICY IF EXISTS api_key_verified ON api_key")
    op.execute(
        "CREATE POLICY api_key_verified ON api_key FOR SELECT TO palimpsest_sweeper USING (true)"
    )
    op.execute("GRANT SELECT, INSERT ON api_key TO palimpsest_app")
    # Never the secret, the scopes or the sessions of a key that exists.
    op.execute("GRANT UPDATE (expires_at, revoked_at, last_used_at) ON api_key TO palimpsest_app")
    op.execute("""
        GRANT SELECT (tenant_id, key_id, secret_hash, scopes, session_prefix, expires_at,
            revoked_at) ON api_key TO palimpsest_sweeper
    """)


def _audit_log() -> None:
    op.execute("""
        CREATE TABLE IF NOT EXISTS audit_event (
            tenant_id uuid NOT NULL,
            sequence bigint NOT NULL,
            occurred_at timestamptz NOT NULL,
            principal text NOT NULL,
            action text NOT NULL,
            session text NOT NULL,
            memory text NOT NULL,
            target text NOT NULL,
            details jsonb NOT NULL,
            digest bytea NOT NULL,
            CONSTRAINT audit_event_pkey PRIMARY KEY (tenant_id, sequence),
            CONSTRAINT audit_event_tenant_fkey
                FOREIGN KEY (tenant_id) REFERENCES tenant (tenant_id),
            CONSTRAINT audit_event_sequence CHECK (sequence > 0),
            CONSTRAINT audit_event_digest CHECK (octet_length(digest) = 32)
        )
    """)
    # The end of each tenant's chain: its lock orders events, and shows that none was cut off.
    op.execute("""
        CREATE TABLE IF NOT EXISTS audit_head (
            tenant_id uuid NOT NULL,
            sequence bigint NOT NULL,
            digest bytea NOT NULL,
            CONSTRAINT audit_head_pkey PRIMARY KEY (tenant_id),
            CONSTRAINT audit_head_tenant_fkey
                FOREIGN KEY (tenant_id) REFERENCES tenant (tenant_id)
        ) WITH (fillfactor = 50)
    """)
    # Also for the owner of the tables, whom grants do not bind. The log of a deleted tenant may go.
    op.execute("""
        CREATE OR REPLACE FUNCTION audit_is_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            IF TG_OP = 'DELETE' THEN
                IF EXISTS (SELECT FROM tenant t
                        WHERE t.tenant_id = OLD.tenant_id AND t.deleted_at IS NOT NULL) THEN
                    RETURN OLD;
                END IF;
            ELSIF TG_OP = 'UPDATE' AND TG_TABLE_NAME = 'audit_head' THEN
                IF NEW.tenant_id = OLD.tenant_id AND NEW.sequence = OLD.sequence + 1 THEN
                    RETURN NEW;
                END IF;
            END IF;
            RAISE EXCEPTION 'the audit log is append-only' USING ERRCODE = 'restrict_violation';
        END
        $$
    """)
    for table in ("audit_event", "audit_head"):
        op.execute(f"DROP TRIGGER IF EXISTS {table}_append_only ON {table}")
        op.execute(f"""
            CREATE TRIGGER {table}_append_only BEFORE UPDATE OR DELETE ON {table}
                FOR EACH ROW EXECUTE FUNCTION audit_is_append_only()
        """)
        op.execute(f"DROP TRIGGER IF EXISTS {table}_kept ON {table}")
        op.execute(f"""
            CREATE TRIGGER {table}_kept BEFORE TRUNCATE ON {table}
                FOR EACH STATEMENT EXECUTE FUNCTION audit_is_append_only()
        """)
        op.execute(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY")
        op.execute(f"DROP POLICY IF EXISTS {table}_of_tenant ON {table}")
        op.execute(_OF_TENANT.format(table=table))
    op.execute("GRANT SELECT, INSERT ON audit_event, audit_head TO palimpsest_app")
    op.execute("GRANT UPDATE (sequence, digest) ON audit_head TO palimpsest_app")
