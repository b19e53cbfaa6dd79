"""Keeps texts out of the planner's statistics, where they would outlive an erasure.

ANALYZE stores samples of a column in pg_statistic, and leaves them there when the table is empty.
Few of these columns are compared, each beside the session's key: posting_list.key and the paths of
entries by their primary keys, an entry's value when it is written again, and metadata of chunks as
a filter. The planner estimates those by its defaults, and chooses the same plans.

Revision: 0051
After: 0050
"""

from alembic import op

revision = "0051"
down_revision = "0050"
branch_labels = None
depends_on = None

#: Columns with content of chunks, and what was derived from it.
_COLUMNS = {
    "amendment": ("path", "value"),
    "answer": ("query", "text", "failure", "value", "citations", "browsing", "navigation"),
    "answer_rating": ("comment", "expected"),
    "answer_text": ("text",),
    "call": ("reply", "failure", "said"),
    "chunk": ("text", "observation", "thought", "action", "metadata"),
    "chunk_word": ("words",),
    "dead_letter": ("cause",),
    "erasure": ("reason",),
    "memory": ("fold_state", "losses"),
    "memory_entry": ("path", "value", "words"),
    "posting_list": ("key", "words"),
    "prism_base": ("value",),
    "prism_snapshot": ("value",),
    "prism_value": ("value",),
    "redaction": ("reason",),
    "rejection": ("proposal", "reason"),
    "request": ("response",),
    "revision": ("comment",),
    "schema_draft": ("domain", "example_query", "source", "failure"),
    "session": ("metadata",),
    "state_vector": ("text", "appended"),
    "tree_node": ("summary", "words"),
    "trajectory_event": ("event",),
}


def upgrade() -> None:
    # Later releases of PostgreSQL let the owner clear what ANALYZE has stored; on others a
    # superuser does, by `palimpsest erasure verify --rewrite`.
    (can_clear,) = (
        op.get_bind()
        .exec_driver_sql("SELECT current_setting('server_version_num')::int >= 180000")
        .one()
    )
    for table, columns in _COLUMNS.items():
        for column in columns:
            op.execute(f"ALTER TABLE {table} ALTER COLUMN {column} SET STATISTICS 0")
            if can_clear:
                op.execute(
                    f"SELECT pg_clear_attribute_stats('public', '{table}', '{column}', false)"
                )
