"""Keeps chunks without their content as tombstones, and the redactions that removed it.

The release before reads them as chunks whose texts are empty.

Revision: 0041
After: 0040
"""

from alembic import op

revision = "0041"
down_revision = "0040"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Nullable without a default: no row is rewritten.
    op.execute("ALTER TABLE chunk ADD COLUMN IF NOT EXISTS redaction_id uuid")
    op.execute(
        "GRANT UPDATE (role, text, observation, thought, action, metadata, thread, source,"
        " occurred_at, observed_first, digest, redaction_id) ON chunk TO palimpsest_app"
    )
    # Whatever a statement asks for, a chunk can only lose its content.
    op.execute("DROP POLICY IF EXISTS chunk_redacted ON chunk")
    op.execute("""
        CREATE POLICY chunk_redacted ON chunk AS RESTRICTIVE FOR UPDATE TO palimpsest_app
            WITH CHECK (
                redaction_id IS NOT NULL AND role = '' AND text = '' AND observation = ''
                AND thought = '' AND action = '' AND metadata IS NULL AND thread IS NULL
                AND source IS NULL AND occurred_at IS NULL
            )
    """)
    # A digest may be of content that was removed since: then it is replaced.
    op.execute("GRANT UPDATE (digest, response) ON request TO palimpsest_app")
    op.execute("""
        CREATE TABLE IF NOT EXISTS redaction (
            session_key uuid NOT NULL,
            redaction_id uuid NOT NULL,
            tenant_id uuid NOT NULL,
            cause text NOT NULL,
            principal text NOT NULL,
            reason text NOT NULL,
            chunks bigint NOT NULL,
            created_at timestamptz NOT NULL DEFAULT now(),
            CONSTRAINT redaction_pkey PRIMARY KEY (session_key, redaction_id),
            CONSTRAINT redaction_session_fkey FOREIGN KEY (session_key, tenant_id)
                REFERENCES session (session_key, tenant_id) ON DELETE CASCADE,
            CONSTRAINT redaction_cause CHECK (cause IN ('redacted', 'expired')),
            CONSTRAINT redaction_chunks CHECK (chunks >= 0)
        )
    """)
    op.execute("ALTER TABLE redaction ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY")
    op.execute("DROP POLICY IF EXISTS redaction_of_tenant ON redaction")
    op.execute("""
        CREATE POLICY redaction_of_tenant ON redaction TO palimpsest_app
            USING (tenant_id = current_setting('app.tenant')::uuid)
            WITH CHECK (tenant_id = current_setting('app.tenant')::uuid)
    """)
    op.execute("DROP POLICY IF EXISTS redaction_removed ON redaction")
    op.execute("""
        CREATE POLICY redaction_removed ON redaction
            AS RESTRICTIVE FOR DELETE TO palimpsest_app
            USING (session_key IN (SELECT session_key FROM removal))
    """)
    op.execute("GRANT SELECT, INSERT, DELETE ON redaction TO palimpsest_app")
