"""State vectors: what they hold, and which of them are in use at a revision.

The release before goes on working with its own memories: it fails to read a session's
list of memories once there is a state memory in it, so these are made when all processes
are of this release. Every statement can run again.

Revision: 0006
After: 0005
"""

from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

#: NOT VALID and then validated: what is there is checked without keeping writers waiting.
KINDS = """
ALTER TABLE memory
    ADD COLUMN IF NOT EXISTS resting boolean NOT NULL DEFAULT false,
    ADD COLUMN IF NOT EXISTS wake_position bigint,
    DROP CONSTRAINT IF EXISTS memory_kind,
    ADD CONSTRAINT memory_kind CHECK (kind IN ('prism', 'tree', 'state')) NOT VALID;
ALTER TABLE revision
    DROP CONSTRAINT IF EXISTS revision_kind,
    ADD CONSTRAINT revision_kind CHECK (
        kind IN ('create', 'step', 'skip', 'fold', 'edit', 'rollback', 'consolidation',
                 'schema', 'build', 'seal', 'episode')
    ) NOT VALID;
GRANT UPDATE (resting, wake_position) ON memory TO palimpsest_app;
"""

CHECKED = (
    "ALTER TABLE memory VALIDATE CONSTRAINT memory_kind",
    "ALTER TABLE revision VALIDATE CONSTRAINT revision_kind",
)

VECTORS = """
CREATE TABLE IF NOT EXISTS state_vector (
    session_key uuid NOT NULL,
    memory_id uuid NOT NULL,
    -- The revision that brought it; 0 has the task prompt.
    revision bigint NOT NULL,
    tenant_id uuid NOT NULL,
    -- 1 for vectors of steps.
    level integer NOT NULL,
    text text NOT NULL,
    tokens bigint NOT NULL,
    made text NOT NULL
        CONSTRAINT state_vector_made CHECK (made IN ('task', 'model', 'cut', 'skipped')),
    -- It stands for after_position + 1 to to_position; from_position + 1 on is new in it.
    after_position bigint NOT NULL,
    from_position bigint NOT NULL,
    to_position bigint NOT NULL,
    -- Revisions of the vectors of the level below that it was made from.
    children bigint[] NOT NULL,
    replies integer NOT NULL,
    -- Pinned strings that the model had dropped.
    appended text[] NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (session_key, memory_id, revision),
    CONSTRAINT state_vector_revision_fkey FOREIGN KEY (session_key, memory_id, revision)
        REFERENCES revision (session_key, memory_id, revision),
    CONSTRAINT state_vector_level
        CHECK (level >= 1 AND (level = 1) = (cardinality(children) = 0)),
    CONSTRAINT state_vector_range CHECK (
        0 <= after_position AND after_position <= from_position AND from_position <= to_position
        AND (from_position < to_position OR revision = 0)
    ),
    CONSTRAINT state_vector_task CHECK ((made = 'task') = (revision = 0))
);
CREATE INDEX IF NOT EXISTS state_vector_by_level
    ON state_vector (session_key, memory_id, level, revision);
CREATE TABLE IF NOT EXISTS state_levels (
    session_key uuid NOT NULL,
    memory_id uuid NOT NULL,
    revision bigint NOT NULL,
    tenant_id uuid NOT NULL,
    -- Of each level from 1 up: the vectors since it began, by their revisions.
    runs jsonb NOT NULL,
    PRIMARY KEY (session_key, memory_id, revision),
    CONSTRAINT state_levels_revision_fkey FOREIGN KEY (session_key, memory_id, revision)
        REFERENCES revision (session_key, memory_id, revision)
);
"""

#: As before, but that it wakes what rests, and lets sleep what waits for more.
APPEND = """
CREATE OR REPLACE FUNCTION append_if_unchanged(
    p_session uuid, p_head bigint, p_incarnation integer,
    p_producer text, p_epoch bigint, p_last bigint,
    p_kinds text[], p_roles text[], p_texts text[],
    p_observations text[], p_thoughts text[], p_actions text[],
    p_metadata jsonb[], p_digests bytea[], p_bytes bigint,
    OUT woken uuid[], OUT applied bigint
) RETURNS SETOF record LANGUAGE plpgsql AS $$
DECLARE
    v_tenant uuid;
BEGIN
    SELECT tenant_id INTO v_tenant FROM session
    WHERE session_key = p_session AND head = p_head AND incarnation = p_incarnation
    FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    UPDATE producer SET last_sequence = p_last + cardinality(p_kinds)
    WHERE session_key = p_session AND producer_id = p_producer
        AND epoch = p_epoch AND last_sequence = p_last;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    UPDATE session
    SET head = p_head + cardinality(p_kinds), content_bytes = content_bytes + p_bytes
    WHERE session_key = p_session;
    INSERT INTO chunk (tenant_id, session_key, position, producer_id, producer_sequence,
                       kind, role, text, observation, thought, action, metadata, digest)
    SELECT v_tenant, p_session, p_head + t.n, p_producer, p_last + t.n,
        t.kind, t.role, t.text, t.observation, t.thought, t.action, t.metadata, t.digest
    FROM unnest(p_kinds, p_roles, p_texts, p_observations, p_thoughts, p_actions,
                p_metadata, p_digests) WITH ORDINALITY
        AS t (kind, role, text, observation, thought, action, metadata, digest, n);
    WITH roused AS (
        UPDATE memory SET has_work = true, resting = false,
            ready_at = CASE WHEN resting THEN now() ELSE ready_at END
        WHERE session_key = p_session AND (NOT has_work OR resting)
            AND (wake_position IS NULL OR wake_position <= p_head + cardinality(p_kinds))
        RETURNING memory_id, status
    )
    SELECT array_agg(memory_id) FILTER (WHERE status = 'active') INTO woken FROM roused;
    SELECT min(applied_position) INTO applied FROM memory
    WHERE session_key = p_session AND status = 'active';
    RETURN NEXT;
END
$$
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
        op.execute(KINDS)
        op.execute(VECTORS)
        for table in ("state_vector", "state_levels"):
            op.execute(_OF_TENANT.format(table=table))
        op.execute(APPEND)
        # These take their time and block nobody, so they may also wait for their lock.
        op.execute("SET lock_timeout = 0")
        for statement in CHECKED:
            op.execute(statement)
        # As `migrations.upgrade` has it; a RESET would be the server's.
        op.execute("SET lock_timeout = '5s'")
