"""Records of erasures, and the keys of tenants that sign and recognize them.

The release before records none: what it deletes meanwhile has no receipt.

Revision: 0038
After: 0037
"""

from alembic import op

revision = "0038"
down_revision = "0037"
branch_labels = None
depends_on = None

_OF_TENANT = """
    CREATE POLICY {table}_of_tenant ON {table} TO palimpsest_app
        USING (tenant_id = current_setting('app.tenant')::uuid)
        WITH CHECK (tenant_id = current_setting('app.tenant')::uuid)
"""


def upgrade() -> None:
    op.execute("""
        CREATE TABLE IF NOT EXISTS erasure (
            tenant_id uuid NOT NULL,
            erasure_id uuid NOT NULL,
            kind text NOT NULL,
            target_session uuid,
            target_item uuid,
            detail jsonb NOT NULL DEFAULT '{}',
            principal text NOT NULL,
            reason text NOT NULL,
            requested_at timestamptz NOT NULL DEFAULT now(),
            completed_at timestamptz,
            journalled_at timestamptz,
            is_replayed boolean NOT NULL DEFAULT false,
            counts jsonb NOT NULL DEFAULT '{}',
            digests bytea NOT NULL DEFAULT '',
            digests_omitted bigint NOT NULL DEFAULT 0,
            CONSTRAINT erasure_pkey PRIMARY KEY (tenant_id, erasure_id),
            CONSTRAINT erasure_tenant_fkey FOREIGN KEY (tenant_id) REFERENCES tenant (tenant_id),
            CONSTRAINT erasure_kind CHECK (kind IN ('session', 'memory', 'chunks', 'tenant')),
            CONSTRAINT erasure_target CHECK ((kind = 'tenant') = (target_session IS NULL))
        )
    """)
    op.execute("""
        CREATE INDEX IF NOT EXISTS erasure_by_time
            ON erasure (tenant_id, requested_at, erasure_id)
    """)
    # Few rows at any time: each batch of a removal adds to its erasure.
    op.execute("""
        CREATE INDEX IF NOT EXISTS erasure_open ON erasure (target_session, target_item)
            WHERE completed_at IS NULL
    """)
    op.execute("""
        CREATE INDEX IF NOT EXISTS erasure_unjournalled ON erasure (tenant_id, erasure_id)
            WHERE journalled_at IS NULL
    """)
    op.execute("""
        CREATE TABLE IF NOT EXISTS tenant_key (
            tenant_id uuid NOT NULL,
            signing_key bytea NOT NULL,
            digest_key bytea NOT NULL,
            created_at timestamptz NOT NULL DEFAULT now(),
            CONSTRAINT tenant_key_pkey PRIMARY KEY (tenant_id),
            CONSTRAINT tenant_key_tenant_fkey
                FOREIGN KEY (tenant_id) REFERENCES tenant (tenant_id),
            CONSTRAINT tenant_key_signing CHECK (octet_length(signing_key) = 32),
            CONSTRAINT tenant_key_digest CHECK (octet_length(digest_key) = 32)
        )
    """)
    for table in ("erasure", "tenant_key"):
        op.execute(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY")
        op.execute(f"DROP POLICY IF EXISTS {table}_of_tenant ON {table}")
        op.execute(_OF_TENANT.format(table=table))
    # A record is never deleted, and its target never changes.
    op.execute("GRANT SELECT, INSERT ON erasure, tenant_key TO palimpsest_app")
    op.execute("""
        GRANT UPDATE (completed_at, journalled_at, counts, digests, digests_omitted)
            ON erasure TO palimpsest_app
    """)
    # A start compares the erasures of all tenants with the journal.
    op.execute("DROP POLICY IF EXISTS erasure_swept ON erasure")
    op.execute(
        "CREATE POLICY erasure_swept ON erasure FOR SELECT TO palimpsest_sweeper USING (true)"
    )
    op.execute("""
        GRANT SELECT (tenant_id, erasure_id, journalled_at) ON erasure TO palimpsest_sweeper
    """)
