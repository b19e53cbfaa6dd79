"""Search: words and vectors of chunks; answers that read the log itself, and what is said
about them.

The release before goes on appending, and a trigger notes that its chunks are to be
indexed. It takes no notice of answers without a memory, and fails to read one that was
cancelled: these are asked for and cancelled when all processes are of this release. Every
statement can run again.

Revision: 0007
After: 0006
"""

from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

#: Sessions that are there have chunks to index, new ones have none.
SESSIONS = """
ALTER TABLE session
    ADD COLUMN IF NOT EXISTS language text NOT NULL DEFAULT 'english',
    ADD COLUMN IF NOT EXISTS indexed_position bigint NOT NULL DEFAULT 0,
    ADD COLUMN IF NOT EXISTS embedded_position bigint NOT NULL DEFAULT 0,
    ADD COLUMN IF NOT EXISTS embedding_model text NOT NULL DEFAULT '',
    ADD COLUMN IF NOT EXISTS has_unindexed boolean NOT NULL DEFAULT true,
    ADD COLUMN IF NOT EXISTS index_ready_at timestamptz NOT NULL DEFAULT now(),
    ADD COLUMN IF NOT EXISTS index_attempts integer NOT NULL DEFAULT 0,
    ADD COLUMN IF NOT EXISTS index_failure text NOT NULL DEFAULT '';
ALTER TABLE session ALTER COLUMN has_unindexed SET DEFAULT false;
GRANT UPDATE (indexed_position, embedded_position, embedding_model, has_unindexed,
              index_ready_at, index_attempts, index_failure) ON session TO palimpsest_app;
CREATE OR REPLACE FUNCTION note_unindexed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.has_unindexed := true;
    RETURN NEW;
END
$$;
-- For every release that appends, and only where the flag is not set.
CREATE OR REPLACE TRIGGER session_note_unindexed BEFORE UPDATE OF head ON session
    FOR EACH ROW WHEN (NEW.head > OLD.head AND NOT NEW.has_unindexed)
    EXECUTE FUNCTION note_unindexed();
DROP POLICY IF EXISTS session_unindexed ON session;
CREATE POLICY session_unindexed ON session FOR SELECT TO palimpsest_sweeper
    USING (has_unindexed);
-- Who changes the model for vectors has to find the sessions that have none of it. Its name
-- is told for one transaction; NULL, as anywhere else, shows nothing.
DROP POLICY IF EXISTS session_unembedded ON session;
CREATE POLICY session_unembedded ON session FOR SELECT TO palimpsest_sweeper
    USING (NOT has_unindexed AND head > 0
        AND nullif(current_setting('app.embedding_model', true), '') IS NOT NULL
        AND (embedding_model <> current_setting('app.embedding_model', true)
            OR embedded_position < head));
GRANT SELECT (session_key, tenant_id, has_unindexed, index_ready_at, head, indexed_position)
    ON session TO palimpsest_sweeper;
"""

SESSION_INDEX = """
CREATE INDEX CONCURRENTLY session_unindexed ON session (index_ready_at) WHERE has_unindexed
"""

CHUNKS = """
CREATE TABLE IF NOT EXISTS chunk_word (
    session_key uuid NOT NULL,
    position bigint NOT NULL,
    tenant_id uuid NOT NULL,
    words tsvector NOT NULL,
    length integer NOT NULL,
    PRIMARY KEY (session_key, position),
    CONSTRAINT chunk_word_chunk_fkey FOREIGN KEY (session_key, position)
        REFERENCES chunk (session_key, position)
);
CREATE TABLE IF NOT EXISTS chunk_vector (
    session_key uuid NOT NULL,
    position bigint NOT NULL,
    part integer NOT NULL,
    tenant_id uuid NOT NULL,
    model text NOT NULL,
    from_character integer NOT NULL,
    to_character integer NOT NULL,
    embedding real[] NOT NULL,
    PRIMARY KEY (session_key, position, part),
    CONSTRAINT chunk_vector_chunk_fkey FOREIGN KEY (session_key, position)
        REFERENCES chunk (session_key, position),
    CONSTRAINT chunk_vector_span CHECK (0 <= from_character AND from_character < to_character)
);
-- Numbers of a vector hardly become fewer by compression.
ALTER TABLE chunk_vector ALTER COLUMN embedding SET STORAGE EXTERNAL;
GRANT UPDATE ON chunk_word, chunk_vector TO palimpsest_app;
GRANT DELETE ON chunk_vector TO palimpsest_app;
"""

#: NOT VALID and then validated: what is there is checked without keeping writers waiting.
ANSWERS = """
ALTER TABLE answer
    ALTER COLUMN memory_id DROP NOT NULL,
    ADD COLUMN IF NOT EXISTS reader text,
    ADD COLUMN IF NOT EXISTS browsing jsonb,
    ADD COLUMN IF NOT EXISTS wanted_model text NOT NULL DEFAULT '',
    ADD COLUMN IF NOT EXISTS response_schema jsonb,
    ADD COLUMN IF NOT EXISTS value jsonb,
    ADD COLUMN IF NOT EXISTS chosen jsonb,
    ADD COLUMN IF NOT EXISTS tells_text boolean NOT NULL DEFAULT false,
    ADD COLUMN IF NOT EXISTS wanted_position bigint NOT NULL DEFAULT 0,
    DROP CONSTRAINT IF EXISTS answer_status,
    ADD CONSTRAINT answer_status
        CHECK (status IN ('pending', 'complete', 'failed', 'cancelled')) NOT VALID;
GRANT UPDATE (value, chosen) ON answer TO palimpsest_app;
CREATE TABLE IF NOT EXISTS answer_text (
    session_key uuid NOT NULL,
    answer_id uuid NOT NULL,
    ordinal integer NOT NULL,
    tenant_id uuid NOT NULL,
    text text NOT NULL,
    restarts boolean NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (session_key, answer_id, ordinal),
    CONSTRAINT answer_text_answer_fkey FOREIGN KEY (session_key, answer_id)
        REFERENCES answer (session_key, answer_id)
);
CREATE TABLE IF NOT EXISTS answer_rating (
    session_key uuid NOT NULL,
    answer_id uuid NOT NULL,
    tenant_id uuid NOT NULL,
    rating integer NOT NULL CONSTRAINT answer_rating_rating CHECK (rating IN (-1, 1)),
    comment text NOT NULL,
    expected text NOT NULL,
    rated_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (session_key, answer_id),
    CONSTRAINT answer_rating_answer_fkey FOREIGN KEY (session_key, answer_id)
        REFERENCES answer (session_key, answer_id)
);
GRANT UPDATE (rating, comment, expected, rated_at) ON answer_rating TO palimpsest_app;
GRANT DELETE ON answer_text TO palimpsest_app;
"""

ANSWER_INDEX = """
CREATE INDEX CONCURRENTLY answer_by_session ON answer (session_key, created_at, answer_id)
"""

_OF_TENANT = """
ALTER TABLE {table} ENABLE ROW LEVEL SECURITY;
ALTER TABLE {table} FORCE ROW LEVEL SECURITY;
DROP POLICY IF EXISTS {table}_of_tenant ON {table};
CREATE POLICY {table}_of_tenant ON {table} TO palimpsest_app
    USING (tenant_id = current_setting('app.tenant')::uuid)
    WITH CHECK (tenant_id = current_setting('app.tenant')::uuid);
GRANT SELECT, INSERT ON {table} TO palimpsest_app;
"""


def upgrade() -> None:
    with op.get_context().autocommit_block():
        op.execute(SESSIONS)
        op.execute(CHUNKS)
        op.execute(ANSWERS)
        for table in ("chunk_word", "chunk_vector", "answer_text", "answer_rating"):
            op.execute(_OF_TENANT.format(table=table))
        # These take their time and block nobody, so they may also wait for their lock.
        op.execute("SET lock_timeout = 0")
        op.execute("ALTER TABLE answer VALIDATE CONSTRAINT answer_status")
        for index, statement in (
            ("session_unindexed", SESSION_INDEX),
            ("answer_by_session", ANSWER_INDEX),
        ):
            # One that was broken off is invalid, and stays so.
            op.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {index}")
            op.execute(statement)
        # As `migrations.upgrade` has it; a RESET would be the server's.
        op.execute("SET lock_timeout = '5s'")
