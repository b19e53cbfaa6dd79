"""Conditions of models: what keeps every call from one, and the work that waits for it.

The release before writes none of it: what waits is found by it when its time is up. Every
statement can run again.

Revision: 0011
After: 0010
"""

from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

CONDITIONS = """
CREATE TABLE IF NOT EXISTS model_condition (
    -- A deployment's name, or the model where it has none.
    place text PRIMARY KEY,
    model text NOT NULL,
    fault text NOT NULL,
    cause text NOT NULL,
    failures integer NOT NULL DEFAULT 1,
    since timestamptz NOT NULL DEFAULT now(),
    probe_at timestamptz NOT NULL
);
GRANT SELECT, INSERT, UPDATE, DELETE ON model_condition TO palimpsest_app;
"""

WAITING = """
ALTER TABLE {table}
    ADD COLUMN IF NOT EXISTS waiting_model text,
    ADD COLUMN IF NOT EXISTS waiting_cause text;
GRANT UPDATE (waiting_model, waiting_cause) ON {table} TO palimpsest_app;
GRANT SELECT (waiting_model) ON {table} TO palimpsest_sweeper;
"""

#: A memory may get another model.
SPECS = "GRANT UPDATE (spec) ON memory TO palimpsest_app"

LETTERS = """
ALTER TABLE dead_letter ADD COLUMN IF NOT EXISTS ambiguous_model text;
"""

INDEX = """
CREATE INDEX CONCURRENTLY {table}_waiting ON {table} (waiting_model, tenant_id, ready_at)
    WHERE waiting_model IS NOT NULL
"""

#: Of memories that stalled on what may turn out to be their model's fault.
AMBIGUOUS = """
CREATE INDEX CONCURRENTLY dead_letter_ambiguous ON dead_letter (ambiguous_model)
    WHERE ambiguous_model IS NOT NULL AND resolution IS NULL
"""

TABLES = ("memory", "answer", "schema_draft")


def upgrade() -> None:
    op.execute(CONDITIONS)
    for table in TABLES:
        op.execute(WAITING.format(table=table))
    op.execute(LETTERS)
    op.execute(SPECS)
    with op.get_context().autocommit_block():
        # An index that is made meanwhile waits for transactions under way.
        op.execute("SET lock_timeout = 0")
        for table in TABLES:
            # One that was interrupted is there, and invalid.
            op.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {table}_waiting")
            op.execute(INDEX.format(table=table))
        op.execute("DROP INDEX CONCURRENTLY IF EXISTS dead_letter_ambiguous")
        op.execute(AMBIGUOUS)
        # As `migrations.upgrade` has it; a RESET would be the server's.
        op.execute("SET lock_timeout = '5s'")
