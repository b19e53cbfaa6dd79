"""Answers know who waits for them; what is pending of a tenant is counted up to a bound.

The release before goes on working: what it asks for is wanted by nobody in particular, and
made in any case; a server of it cannot show answers that are abandoned. Every statement can
run again.

Revision: 0024
After: 0023
"""

from alembic import op

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None

ANSWERS = """
ALTER TABLE answer
    ADD COLUMN IF NOT EXISTS waiter uuid,
    ADD COLUMN IF NOT EXISTS wanted_until timestamptz,
    DROP CONSTRAINT IF EXISTS answer_status,
    ADD CONSTRAINT answer_status
        CHECK (status IN ('pending', 'complete', 'failed', 'cancelled', 'abandoned')) NOT VALID;
GRANT UPDATE (waiter, wanted_until) ON answer TO palimpsest_app
"""

VALIDATE = "ALTER TABLE answer VALIDATE CONSTRAINT answer_status"

#: What counts as pending; of answers, those that nobody has left.
PENDING = {
    "answer": "status = 'pending' AND (waiter IS NOT NULL OR wanted_until IS NULL)",
    "schema_draft": "status = 'pending'",
}
IDS = {"answer": "answer_id", "schema_draft": "draft_id"}

INDEX = """
CREATE INDEX CONCURRENTLY {table}_pending ON {table} (tenant_id, {id}) WHERE {pending}
"""

#: As many index entries are read as the bound allows. Only this index has the order, and
#: nothing may be sorted: so there is one plan, whatever statistics say.
COUNT = """
CREATE OR REPLACE FUNCTION count_pending_{table}(p_tenant uuid, p_limit integer)
RETURNS bigint LANGUAGE plpgsql STABLE SET enable_sort = off AS $$
BEGIN
    RETURN (
        SELECT count(*) FROM (
            SELECT FROM {table} WHERE tenant_id = p_tenant AND {pending}
            ORDER BY {id} LIMIT p_limit
        ) AS counted
    );
END
$$
"""


def upgrade() -> None:
    op.execute(ANSWERS)
    with op.get_context().autocommit_block():
        # These take their time and block nobody, so they may also wait for their locks.
        op.execute("SET lock_timeout = 0")
        op.execute(VALIDATE)
        for table, pending in PENDING.items():
            # One that was interrupted is there, and invalid.
            op.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {table}_pending")
            op.execute(INDEX.format(table=table, id=IDS[table], pending=pending))
        # As `migrations.upgrade` has it; a RESET would be the server's.
        op.execute("SET lock_timeout = '5s'")
    for table, pending in PENDING.items():
        op.execute(COUNT.format(table=table, id=IDS[table], pending=pending))
