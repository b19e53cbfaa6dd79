"""The log and PRISM memories.

Revision: 0001
After: nothing
"""

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

#: Tables that rows are only ever added to by the running service.
APPEND_ONLY = ("chunk", "revision", "amendment", "rejection", "prism_base", "call")
#: Tables whose rows the running service also changes, and the columns it may change.
CHANGING = {
    "session": ("head", "content_bytes"),
    "producer": ("epoch", "last_sequence"),
    "memory": (
        "revision",
        "applied_position",
        "epoch",
        "status",
        "has_work",
        "ready_at",
        "attempts",
    ),
    "prism_value": ("revision", "value"),
    "dead_letter": ("resolution",),
    "answer": ("status", "text", "citations", "model", "failure", "attempts", "ready_at"),
}

ROLES = """
DO $$
DECLARE
    able boolean;
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = '{role}') THEN
        CREATE ROLE {role} NOLOGIN NOSUPERUSER NOBYPASSRLS NOCREATEDB NOCREATEROLE;
    END IF;
    -- Since PostgreSQL 16 being a member and being able to SET ROLE are two things.
    EXECUTE format('SELECT pg_has_role(current_user, %L, %L)', '{role}',
        CASE WHEN current_setting('server_version_num')::int >= 160000 THEN 'SET' ELSE 'MEMBER' END
    ) INTO able;
    IF NOT able THEN
        EXECUTE format('GRANT {role} TO %I', current_user);
    END IF;
EXCEPTION WHEN duplicate_object OR unique_violation THEN
    -- Another database of this server makes the same role at this moment.
    NULL;
END
$$
"""

TABLES = """
CREATE TABLE deployment (
    singleton boolean DEFAULT true PRIMARY KEY,
    token_key bytea NOT NULL,
    marker_key bytea NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT deployment_singleton CHECK (singleton)
);

CREATE TABLE tenant (
    tenant_id uuid PRIMARY KEY,
    name text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE session (
    session_key uuid PRIMARY KEY,
    tenant_id uuid NOT NULL CONSTRAINT session_tenant_fkey REFERENCES tenant,
    name text NOT NULL,
    head bigint NOT NULL DEFAULT 0 CONSTRAINT session_head CHECK (head >= 0),
    content_bytes bigint NOT NULL DEFAULT 0,
    incarnation integer NOT NULL DEFAULT 1,
    created_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX session_by_name ON session (tenant_id, name);

CREATE TABLE producer (
    session_key uuid NOT NULL CONSTRAINT producer_session_fkey REFERENCES session,
    producer_id text NOT NULL,
    tenant_id uuid NOT NULL,
    epoch bigint NOT NULL,
    last_sequence bigint NOT NULL,
    PRIMARY KEY (session_key, producer_id)
);

CREATE TABLE chunk (
    session_key uuid NOT NULL,
    position bigint NOT NULL CONSTRAINT chunk_position CHECK (position >= 1),
    tenant_id uuid NOT NULL,
    producer_id text NOT NULL,
    producer_sequence bigint NOT NULL CONSTRAINT chunk_sequence CHECK (producer_sequence >= 1),
    kind text NOT NULL CONSTRAINT chunk_kind CHECK (kind IN ('text', 'message', 'step')),
    role text NOT NULL,
    text text NOT NULL,
    observation text NOT NULL,
    thought text NOT NULL,
    action text NOT NULL,
    metadata jsonb,
    digest bytea NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (session_key, position),
    CONSTRAINT chunk_once UNIQUE (session_key, producer_id, producer_sequence),
    CONSTRAINT chunk_producer_fkey FOREIGN KEY (session_key, producer_id) REFERENCES producer
);

CREATE TABLE memory (
    session_key uuid NOT NULL CONSTRAINT memory_session_fkey REFERENCES session,
    memory_id uuid NOT NULL,
    tenant_id uuid NOT NULL,
    name text NOT NULL,
    kind text NOT NULL CONSTRAINT memory_kind CHECK (kind IN ('prism')),
    spec jsonb NOT NULL,
    revision bigint NOT NULL DEFAULT 0,
    applied_position bigint NOT NULL DEFAULT 0,
    epoch bigint NOT NULL DEFAULT 0,
    status text NOT NULL DEFAULT 'active'
        CONSTRAINT memory_status CHECK (status IN ('active', 'stalled')),
    has_work boolean NOT NULL DEFAULT false,
    ready_at timestamptz NOT NULL DEFAULT now(),
    attempts integer NOT NULL DEFAULT 0,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (session_key, memory_id)
);
CREATE INDEX memory_runnable ON memory (ready_at) WHERE has_work AND status = 'active';

CREATE TABLE revision (
    session_key uuid NOT NULL,
    memory_id uuid NOT NULL,
    revision bigint NOT NULL,
    tenant_id uuid NOT NULL,
    parent_revision bigint,
    from_position bigint NOT NULL,
    to_position bigint NOT NULL,
    kind text NOT NULL
        CONSTRAINT revision_kind CHECK (kind IN ('create', 'step', 'skip', 'fold')),
    epoch bigint NOT NULL,
    digest bytea NOT NULL,
    last_chunk bigint GENERATED ALWAYS AS (NULLIF(to_position, 0)) STORED,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (session_key, memory_id, revision),
    CONSTRAINT revision_end UNIQUE (session_key, memory_id, revision, to_position),
    CONSTRAINT revision_memory_fkey FOREIGN KEY (session_key, memory_id) REFERENCES memory,
    CONSTRAINT revision_chain_fkey
        FOREIGN KEY (session_key, memory_id, parent_revision, from_position)
        REFERENCES revision (session_key, memory_id, revision, to_position),
    CONSTRAINT revision_chunk_fkey
        FOREIGN KEY (session_key, last_chunk) REFERENCES chunk (session_key, position),
    CONSTRAINT revision_root CHECK ((revision = 0) = (parent_revision IS NULL)),
    CONSTRAINT revision_parent CHECK (parent_revision = revision - 1),
    CONSTRAINT revision_range CHECK (
        (kind IN ('step', 'skip')) = (to_position > from_position)
        AND to_position >= from_position AND from_position >= 0
    )
);
CREATE UNIQUE INDEX revision_once ON revision (session_key, memory_id, from_position)
    WHERE to_position > from_position;
ALTER TABLE memory ADD CONSTRAINT memory_revision_fkey
    FOREIGN KEY (session_key, memory_id, revision, applied_position)
    REFERENCES revision (session_key, memory_id, revision, to_position)
    DEFERRABLE INITIALLY DEFERRED;

CREATE TABLE amendment (
    session_key uuid NOT NULL,
    memory_id uuid NOT NULL,
    revision bigint NOT NULL,
    ordinal integer NOT NULL,
    tenant_id uuid NOT NULL,
    path text NOT NULL,
    op text NOT NULL CONSTRAINT amendment_op CHECK (op IN ('add', 'update')),
    value text NOT NULL,
    op_corrected boolean NOT NULL,
    PRIMARY KEY (session_key, memory_id, revision, ordinal),
    CONSTRAINT amendment_revision_fkey
        FOREIGN KEY (session_key, memory_id, revision) REFERENCES revision
);

CREATE TABLE rejection (
    session_key uuid NOT NULL,
    memory_id uuid NOT NULL,
    revision bigint NOT NULL,
    ordinal integer NOT NULL,
    tenant_id uuid NOT NULL,
    proposal text NOT NULL,
    reason text NOT NULL,
    PRIMARY KEY (session_key, memory_id, revision, ordinal),
    CONSTRAINT rejection_revision_fkey
        FOREIGN KEY (session_key, memory_id, revision) REFERENCES revision
);

CREATE TABLE prism_base (
    session_key uuid NOT NULL,
    memory_id uuid NOT NULL,
    revision bigint NOT NULL,
    tenant_id uuid NOT NULL,
    value text NOT NULL,
    PRIMARY KEY (session_key, memory_id, revision),
    CONSTRAINT prism_base_revision_fkey
        FOREIGN KEY (session_key, memory_id, revision) REFERENCES revision
);

CREATE TABLE prism_value (
    session_key uuid NOT NULL,
    memory_id uuid NOT NULL,
    tenant_id uuid NOT NULL,
    revision bigint NOT NULL,
    value text NOT NULL,
    PRIMARY KEY (session_key, memory_id),
    CONSTRAINT prism_value_revision_fkey
        FOREIGN KEY (session_key, memory_id, revision) REFERENCES revision
);

CREATE TABLE call (
    session_key uuid NOT NULL,
    call_id uuid NOT NULL,
    tenant_id uuid NOT NULL,
    memory_id uuid NOT NULL,
    occasion text COLLATE "C" NOT NULL,
    key bytea NOT NULL,
    purpose text NOT NULL,
    template text NOT NULL,
    model text NOT NULL,
    reply text,
    failure text,
    input_tokens bigint NOT NULL,
    predicted_cached_tokens bigint NOT NULL,
    reported_cached_tokens bigint,
    cache_write_tokens bigint,
    output_tokens bigint NOT NULL,
    cost_micro_usd bigint,
    latency_ms bigint NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (session_key, call_id),
    CONSTRAINT call_memory_fkey FOREIGN KEY (session_key, memory_id) REFERENCES memory,
    CONSTRAINT call_outcome CHECK ((reply IS NULL) <> (failure IS NULL))
);
CREATE UNIQUE INDEX call_once ON call (session_key, key) WHERE reply IS NOT NULL;
CREATE INDEX call_by_memory ON call (session_key, memory_id, occasion);

CREATE TABLE dead_letter (
    session_key uuid NOT NULL,
    memory_id uuid NOT NULL,
    letter_id uuid NOT NULL,
    tenant_id uuid NOT NULL,
    from_position bigint NOT NULL,
    to_position bigint NOT NULL,
    attempts integer NOT NULL,
    cause text NOT NULL,
    resolution text
        CONSTRAINT dead_letter_resolution CHECK (resolution IN ('retried', 'skipped')),
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (session_key, memory_id, letter_id),
    CONSTRAINT dead_letter_memory_fkey FOREIGN KEY (session_key, memory_id) REFERENCES memory
);
CREATE UNIQUE INDEX dead_letter_open ON dead_letter (session_key, memory_id)
    WHERE resolution IS NULL;

CREATE TABLE answer (
    session_key uuid NOT NULL,
    answer_id uuid NOT NULL,
    tenant_id uuid NOT NULL,
    memory_id uuid NOT NULL,
    query text NOT NULL,
    status text NOT NULL DEFAULT 'pending'
        CONSTRAINT answer_status CHECK (status IN ('pending', 'complete', 'failed')),
    revision bigint NOT NULL,
    applied_position bigint NOT NULL,
    text text NOT NULL DEFAULT '',
    citations jsonb NOT NULL DEFAULT '[]',
    model text NOT NULL DEFAULT '',
    failure text NOT NULL DEFAULT '',
    attempts integer NOT NULL DEFAULT 0,
    ready_at timestamptz NOT NULL DEFAULT now(),
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (session_key, answer_id),
    CONSTRAINT answer_revision_fkey
        FOREIGN KEY (session_key, memory_id, revision) REFERENCES revision
);
CREATE INDEX answer_runnable ON answer (ready_at) WHERE status = 'pending';
"""

#: An unset tenant raises an error instead of matching nothing: both fail closed,
#: this one is heard.
SEPARATION = """
ALTER TABLE {table} ENABLE ROW LEVEL SECURITY;
ALTER TABLE {table} FORCE ROW LEVEL SECURITY;
CREATE POLICY {table}_of_tenant ON {table} TO palimpsest_app
    USING (tenant_id = current_setting('app.tenant')::uuid)
    WITH CHECK (tenant_id = current_setting('app.tenant')::uuid);
GRANT SELECT, INSERT ON {table} TO palimpsest_app;
"""

SWEEPER = """
CREATE POLICY memory_runnable ON memory FOR SELECT TO palimpsest_sweeper
    USING (has_work AND status = 'active');
CREATE POLICY answer_runnable ON answer FOR SELECT TO palimpsest_sweeper
    USING (status = 'pending');
GRANT SELECT (session_key, memory_id, tenant_id, has_work, status, ready_at)
    ON memory TO palimpsest_sweeper;
GRANT SELECT (session_key, answer_id, tenant_id, status, ready_at)
    ON answer TO palimpsest_sweeper;
"""

#: Compare-and-set: appends new chunks of one producer if session and producer are as the
#: caller last saw them, and returns no row, having written nothing, if they are not.
#: Each statement has a snapshot of its own, taken under the session's lock: a step that
#: was about to rest has committed by then, and its `has_work` is seen.
APPEND = """
CREATE FUNCTION append_if_unchanged(
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
        UPDATE memory SET has_work = true
        WHERE session_key = p_session AND NOT has_work
        RETURNING memory_id, status
    )
    SELECT array_agg(memory_id) FILTER (WHERE status = 'active') INTO woken FROM roused;
    SELECT min(applied_position) INTO applied FROM memory
    WHERE session_key = p_session AND status = 'active';
    RETURN NEXT;
END
$$
"""

#: The keys come from gen_random_uuid, which PostgreSQL draws from the operating
#: system's generator: two of them give 244 random bits. pgcrypto is not everywhere.
DEPLOYMENT = """
GRANT SELECT ON deployment TO palimpsest_app;
INSERT INTO deployment (token_key, marker_key) VALUES (
    sha256(convert_to(gen_random_uuid()::text || gen_random_uuid()::text, 'UTF8')),
    sha256(convert_to(gen_random_uuid()::text || gen_random_uuid()::text, 'UTF8'))
);
INSERT INTO tenant (tenant_id, name)
VALUES ('9d5f4c6e-7a43-5d0b-8f0e-2f4f7d1a0001', 'default');
"""


def upgrade() -> None:
    for role in ("palimpsest_app", "palimpsest_sweeper"):
        op.execute(ROLES.format(role=role))
    op.execute(TABLES)
    op.execute(DEPLOYMENT)
    op.execute("GRANT USAGE ON SCHEMA public TO palimpsest_app, palimpsest_sweeper")
    # Every process checks at its start that the database is not behind.
    op.execute("GRANT SELECT ON alembic_version TO palimpsest_app")
    for table in ("tenant", *APPEND_ONLY, *CHANGING):
        op.execute(SEPARATION.format(table=table))
    for table, columns in CHANGING.items():
        op.execute(f"GRANT UPDATE ({', '.join(columns)}) ON {table} TO palimpsest_app")
    op.execute(SWEEPER)
    op.execute(APPEND)
