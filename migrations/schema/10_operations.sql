-- The deployment, its processes, and which trace their work belongs to.

-- One row: what all processes on this database share.
CREATE TABLE deployment (
    singleton boolean PRIMARY KEY DEFAULT true CONSTRAINT deployment_singleton CHECK (singleton),
    token_key bytea NOT NULL,
    marker_key bytea NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    -- The identity of the database when `palimpsest migrate` last noted it, so that a copy of it is
    -- found to be one: storage/operations/database_identity.py.
    server_identifier text,
    database_oid bigint,
    timeline bigint
);
GRANT SELECT ON deployment TO palimpsest_app;

-- The keys are drawn by gen_random_uuid, which takes them from the operating system's generator:
-- two of them give 244 random bits. pgcrypto is not everywhere.
INSERT INTO deployment (token_key, marker_key) VALUES (
    sha256(convert_to(gen_random_uuid()::text || gen_random_uuid()::text, 'UTF8')),
    sha256(convert_to(gen_random_uuid()::text || gen_random_uuid()::text, 'UTF8'))
);


-- What the clock of each process says, against the database's.
CREATE TABLE process (
    -- Of one start of a process; those that are gone are forgotten after a while.
    process_id uuid PRIMARY KEY,
    kind text NOT NULL,
    host text NOT NULL,
    -- Its clock less the database's, and how long it took to compare them.
    clock_off_seconds double precision NOT NULL,
    round_trip_seconds double precision NOT NULL,
    seen_at timestamptz NOT NULL DEFAULT now()
);
GRANT SELECT, INSERT, UPDATE, DELETE ON process TO palimpsest_app;


-- Which span an append, a commit and a question belong to. Only of what is sampled, and for a day.
-- Without a write-ahead log: a crash of the server loses links between traces, and nothing else.
CREATE UNLOGGED TABLE trace_context (
    session_key uuid NOT NULL,
    -- The session itself of chunks that were appended, a memory of what was committed to it, or
    -- what is to be made: an answer.
    owner_id uuid NOT NULL,
    -- Positions in the log; of a commit both are its revision, of what is to be made both are 0.
    from_position bigint NOT NULL,
    to_position bigint NOT NULL,
    tenant_id uuid NOT NULL,
    -- As W3C Trace Context has them.
    trace_id bytea NOT NULL CONSTRAINT trace_context_trace CHECK (octet_length(trace_id) = 16),
    span_id bytea NOT NULL CONSTRAINT trace_context_span CHECK (octet_length(span_id) = 8),
    flags smallint NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (session_key, owner_id, to_position),
    CONSTRAINT trace_context_session_fkey FOREIGN KEY (session_key, tenant_id)
        REFERENCES session (session_key, tenant_id) ON DELETE CASCADE,
    CONSTRAINT trace_context_positions CHECK (0 <= from_position AND from_position <= to_position)
);
-- For sweeps, which read the oldest of all tenants.
CREATE INDEX trace_context_age ON trace_context (created_at);
ALTER TABLE trace_context ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY trace_context_of_tenant ON trace_context TO palimpsest_app
    USING (tenant_id = current_setting('app.tenant')::uuid)
    WITH CHECK (tenant_id = current_setting('app.tenant')::uuid);
CREATE POLICY trace_context_removed ON trace_context
    AS RESTRICTIVE FOR DELETE TO palimpsest_app
    USING (session_key IN (SELECT session_key FROM removal));
-- Those that are swept, and no others.
CREATE POLICY trace_context_swept ON trace_context TO palimpsest_sweeper
    USING (created_at < now() - interval '1 day');
GRANT SELECT, INSERT, DELETE ON trace_context TO palimpsest_app;
GRANT SELECT, DELETE ON trace_context TO palimpsest_sweeper;
