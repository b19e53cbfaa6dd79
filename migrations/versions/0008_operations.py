"""Operations: where the database stands, and who the tenants are.

A copy of the database stands elsewhere, and a checkup can tell. The release before takes
no notice. Every statement can run again.

Revision: 0008
After: 0007
"""

from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

#: NULL until `palimpsest migrate` notes them, behind the migrations.
DEPLOYMENT = """
ALTER TABLE deployment
    ADD COLUMN IF NOT EXISTS server_identifier text,
    ADD COLUMN IF NOT EXISTS database_oid bigint,
    ADD COLUMN IF NOT EXISTS timeline bigint;
"""

#: A checkup looks at all tenants, each in a transaction of its own.
TENANTS = """
DROP POLICY IF EXISTS tenant_listed ON tenant;
CREATE POLICY tenant_listed ON tenant FOR SELECT TO palimpsest_sweeper USING (true);
GRANT SELECT (tenant_id, name) ON tenant TO palimpsest_sweeper;
"""


def upgrade() -> None:
    op.execute(DEPLOYMENT)
    op.execute(TENANTS)
