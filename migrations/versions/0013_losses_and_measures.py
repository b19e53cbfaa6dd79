"""Losses: what rejections mean for readers of a memory. Measures: lag over all tenants.

The release before reads neither: what it commits leaves losses as they are. Every statement
can run again.

Revision: 0013
After: 0012
"""

from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

LOSSES = """
ALTER TABLE memory ADD COLUMN IF NOT EXISTS losses jsonb;
GRANT UPDATE (losses) ON memory TO palimpsest_app;
"""

# Positions and times, and only in a transaction that says that it measures: no text, no name.
MEASURES = """
GRANT SELECT (applied_position, held_reason, resting, seal_position) ON memory
    TO palimpsest_sweeper;
GRANT SELECT (head) ON session TO palimpsest_sweeper;
GRANT SELECT (session_key, position, created_at) ON chunk TO palimpsest_sweeper;
GRANT SELECT (session_key, memory_id, resolution) ON dead_letter TO palimpsest_sweeper;
DROP POLICY IF EXISTS session_measured ON session;
CREATE POLICY session_measured ON session FOR SELECT TO palimpsest_sweeper
    USING (current_setting('app.measuring', true) = 'on');
DROP POLICY IF EXISTS chunk_measured ON chunk;
CREATE POLICY chunk_measured ON chunk FOR SELECT TO palimpsest_sweeper
    USING (current_setting('app.measuring', true) = 'on');
DROP POLICY IF EXISTS dead_letter_measured ON dead_letter;
CREATE POLICY dead_letter_measured ON dead_letter FOR SELECT TO palimpsest_sweeper
    USING (resolution IS NULL AND current_setting('app.measuring', true) = 'on');
"""


def upgrade() -> None:
    # Each by itself: appends lock a session before its memories, and none may wait for this
    # while this waits for it.
    with op.get_context().autocommit_block():
        for statement in (LOSSES + MEASURES).split(";\n"):
            if statement.strip():
                op.execute(statement)
