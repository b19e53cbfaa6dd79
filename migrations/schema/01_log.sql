-- Tenants, sessions, their logs, the requests that were done, and what is being removed.

CREATE TABLE tenant (
    tenant_id uuid PRIMARY KEY,
    name text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now()
);
-- Before row-level security, which binds the owner too.
INSERT INTO tenant (tenant_id, name)
VALUES ('9d5f4c6e-7a43-5d0b-8f0e-2f4f7d1a0001', 'default');
ALTER TABLE tenant ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant_of_tenant ON tenant TO palimpsest_app
    USING (tenant_id = current_setting('app.tenant')::uuid)
    WITH CHECK (tenant_id = current_setting('app.tenant')::uuid);
-- A checkup looks at all tenants, each in a transaction of its own.
CREATE POLICY tenant_listed ON tenant FOR SELECT TO palimpsest_sweeper USING (true);
GRANT SELECT, INSERT ON tenant TO palimpsest_app;
GRANT SELECT (tenant_id, name) ON tenant TO palimpsest_sweeper;


-- fillfactor, here and below: rows that every message changes keep room on their page for the next
-- version, so that none of their indexes has to learn where it is. A tenth is enough, and more
-- would cost: each access to a page with less room free than this cleans it, which is logged.
CREATE TABLE session (
    -- uuid5(tenant, name), so a name is unique without a look-up.
    session_key uuid NOT NULL,
    tenant_id uuid NOT NULL CONSTRAINT session_tenant_fkey REFERENCES tenant,
    name text NOT NULL,
    -- The position of the newest chunk. It moves under this row's lock only.
    head bigint NOT NULL DEFAULT 0 CONSTRAINT session_head CHECK (head >= 0),
    -- Of all chunks, with their metadata.
    content_bytes bigint NOT NULL DEFAULT 0,
    -- Rises when a name is used again after a deletion, so that old tokens are refused.
    incarnation integer NOT NULL DEFAULT 1,
    created_at timestamptz NOT NULL DEFAULT now(),
    -- A configuration of PostgreSQL's full-text search, by its name.
    language text NOT NULL DEFAULT 'english',
    -- Up to here chunk_word has the words, and chunk_vector the vectors of embedding_model.
    indexed_position bigint NOT NULL DEFAULT 0,
    embedded_position bigint NOT NULL DEFAULT 0,
    embedding_model text NOT NULL DEFAULT '',
    -- Set by every append: a column that stays true costs it nothing.
    has_unindexed boolean NOT NULL DEFAULT false,
    index_ready_at timestamptz NOT NULL DEFAULT now(),
    index_attempts integer NOT NULL DEFAULT 0,
    -- Why the last try to embed failed; empty when it did not.
    index_failure text NOT NULL DEFAULT '',
    -- The same of words, which wait for no model: tried again ever later.
    words_ready_at timestamptz NOT NULL DEFAULT now(),
    words_attempts integer NOT NULL DEFAULT 0,
    words_failure text NOT NULL DEFAULT '',
    -- Set: a tombstone, which row-level security hides. Its name may be used anew once nothing of
    -- the session is left.
    deleted_at timestamptz,
    -- The epoch that new memories begin with: above that of each memory that was deleted, since
    -- one of the same name may still be with a worker.
    first_epoch bigint NOT NULL DEFAULT 0,
    -- The client's own keys and values.
    metadata jsonb NOT NULL DEFAULT '{}',
    -- With the tenant, for the keys of all that belongs to a session: it is of the session's
    -- tenant. One index serves both, and every message writes to it.
    PRIMARY KEY (session_key, tenant_id)
) WITH (fillfactor = 90);
-- For lists, by the bytes of names, whatever the database's own collation is. The condition is so
-- of each row. It keeps this index to the statements that repeat it: without statistics the planner
-- would take it for others as well, since row-level security names the tenant.
CREATE INDEX session_of_tenant_by_bytes ON session (tenant_id, name COLLATE "C") WHERE name > '';
-- For the queue: see take_work.
CREATE INDEX session_turns ON session (tenant_id, index_ready_at)
    WHERE has_unindexed AND index_ready_at > '-infinity';
ALTER TABLE session ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
-- A transaction that removes the rows of what is deleted says so, as it says its tenant.
CREATE POLICY session_of_tenant ON session TO palimpsest_app
    USING (
        tenant_id = current_setting('app.tenant')::uuid
        AND (deleted_at IS NULL OR current_setting('app.removing', true) = 'on')
    )
    WITH CHECK (tenant_id = current_setting('app.tenant')::uuid);
CREATE POLICY session_unindexed ON session FOR SELECT TO palimpsest_sweeper USING (has_unindexed);
-- After a change of the model for vectors, the sessions that have none of the new one. The
-- transaction names the model; NULL, as anywhere else, shows nothing.
CREATE POLICY session_unembedded ON session FOR SELECT TO palimpsest_sweeper
    USING (
        NOT has_unindexed AND head > 0
        AND nullif(current_setting('app.embedding_model', true), '') IS NOT NULL
        AND (
            embedding_model <> current_setting('app.embedding_model', true)
            OR embedded_position < head
        )
    );
-- Positions and times, and only in a transaction that says that it measures: no text, no name.
CREATE POLICY session_measured ON session FOR SELECT TO palimpsest_sweeper
    USING (current_setting('app.measuring', true) = 'on');
GRANT SELECT, INSERT ON session TO palimpsest_app;
GRANT UPDATE (
    head, content_bytes, incarnation, created_at, language, indexed_position, embedded_position,
    embedding_model, has_unindexed, index_ready_at, index_attempts, index_failure, words_ready_at,
    words_attempts, words_failure, deleted_at, first_epoch, metadata
) ON session TO palimpsest_app;
GRANT SELECT (
    session_key, tenant_id, head, indexed_position, has_unindexed, index_ready_at, words_ready_at
) ON session TO palimpsest_sweeper;


-- What is deleted and still has rows. Workers remove them, batch by batch.
CREATE TABLE removal (
    session_key uuid NOT NULL,
    -- The session's own key, or the memory that is deleted alone.
    item_id uuid NOT NULL,
    tenant_id uuid NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    ready_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (session_key, item_id),
    CONSTRAINT removal_session_fkey FOREIGN KEY (session_key, tenant_id)
        REFERENCES session (session_key, tenant_id)
);
-- For the queue: see take_work.
CREATE INDEX removal_turns ON removal (tenant_id, ready_at) WHERE ready_at > '-infinity';
ALTER TABLE removal ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY removal_of_tenant ON removal TO palimpsest_app
    USING (tenant_id = current_setting('app.tenant')::uuid)
    WITH CHECK (tenant_id = current_setting('app.tenant')::uuid);
CREATE POLICY removal_swept ON removal FOR SELECT TO palimpsest_sweeper USING (true);
GRANT SELECT, INSERT, UPDATE (ready_at), DELETE ON removal TO palimpsest_app;
GRANT SELECT ON removal TO palimpsest_sweeper;


CREATE TABLE producer (
    session_key uuid NOT NULL,
    producer_id text NOT NULL,
    tenant_id uuid NOT NULL,
    epoch bigint NOT NULL,
    last_sequence bigint NOT NULL,
    PRIMARY KEY (session_key, producer_id),
    CONSTRAINT producer_session_fkey FOREIGN KEY (session_key, tenant_id)
        REFERENCES session (session_key, tenant_id)
) WITH (fillfactor = 90);
ALTER TABLE producer ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY producer_of_tenant ON producer TO palimpsest_app
    USING (tenant_id = current_setting('app.tenant')::uuid)
    WITH CHECK (tenant_id = current_setting('app.tenant')::uuid);
CREATE POLICY producer_removed ON producer
    AS RESTRICTIVE FOR DELETE TO palimpsest_app
    USING (session_key IN (SELECT session_key FROM removal));
GRANT SELECT, INSERT, UPDATE (epoch, last_sequence), DELETE ON producer TO palimpsest_app;


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
    -- Of a step: whether the observation precedes the thought and the action. NULL where its
    -- producer did not say it; its text has the observation first.
    observed_first boolean,
    -- NULL where the chunk has none.
    thread text,
    source text,
    occurred_at timestamptz,
    PRIMARY KEY (session_key, position),
    -- A producer's sequence number is stored once, for ever.
    CONSTRAINT chunk_once UNIQUE (session_key, producer_id, producer_sequence),
    CONSTRAINT chunk_producer_fkey FOREIGN KEY (session_key, producer_id) REFERENCES producer
);
-- A chunk without a thread has no entry, and costs nothing here.
CREATE INDEX chunk_of_thread ON chunk (session_key, thread, position) WHERE thread IS NOT NULL;
ALTER TABLE chunk ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY chunk_of_tenant ON chunk TO palimpsest_app
    USING (tenant_id = current_setting('app.tenant')::uuid)
    WITH CHECK (tenant_id = current_setting('app.tenant')::uuid);
CREATE POLICY chunk_removed ON chunk
    AS RESTRICTIVE FOR DELETE TO palimpsest_app
    USING (session_key IN (SELECT session_key FROM removal));
CREATE POLICY chunk_measured ON chunk FOR SELECT TO palimpsest_sweeper
    USING (current_setting('app.measuring', true) = 'on');
GRANT SELECT, INSERT, DELETE ON chunk TO palimpsest_app;
GRANT SELECT (session_key, position, created_at) ON chunk TO palimpsest_sweeper;


-- Requests of clients that were done, so that a retry gets the result of the first call.
CREATE TABLE request (
    -- Of the session that it is about; of one that is about none, the key of the empty name.
    session_key uuid NOT NULL,
    -- The client's own name for it.
    request_id text NOT NULL,
    tenant_id uuid NOT NULL,
    method text NOT NULL,
    -- SHA-256 of what was asked for.
    digest bytea NOT NULL CONSTRAINT request_digest CHECK (octet_length(digest) = 32),
    -- Of an append: where its chunks are.
    first_position bigint,
    last_position bigint,
    created_at timestamptz NOT NULL DEFAULT now(),
    -- When it may be removed; NULL: not before the session is.
    expires_at timestamptz,
    -- The serialized response of the first call; NULL of appends, whose positions say it.
    response bytea,
    PRIMARY KEY (session_key, request_id),
    -- Both in one transaction: no request is done whose chunks are not there.
    CONSTRAINT request_chunk_fkey FOREIGN KEY (session_key, last_position)
        REFERENCES chunk (session_key, position),
    -- A check that is NULL holds, so NULL is named.
    CONSTRAINT request_positions CHECK (
        method <> 'Append'
        OR (first_position >= 1 AND last_position >= first_position) IS TRUE
    )
);
-- A row that is removed is looked for in what may refer to it. Without such an index, here and in
-- the other rooms, that look reads all rows of the session, once for each row that is removed.
CREATE INDEX request_by_chunk ON request (session_key, last_position)
    WHERE last_position IS NOT NULL;
CREATE INDEX request_expiry ON request (expires_at) WHERE expires_at IS NOT NULL;
ALTER TABLE request ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY request_of_tenant ON request TO palimpsest_app
    USING (tenant_id = current_setting('app.tenant')::uuid)
    WITH CHECK (tenant_id = current_setting('app.tenant')::uuid);
CREATE POLICY request_removed ON request
    AS RESTRICTIVE FOR DELETE TO palimpsest_app
    USING (session_key IN (SELECT session_key FROM removal));
-- Those that are swept, and no others.
CREATE POLICY request_swept ON request TO palimpsest_sweeper USING (expires_at < now());
GRANT SELECT, INSERT, DELETE ON request TO palimpsest_app;
GRANT SELECT, DELETE ON request TO palimpsest_sweeper;

-- Compare-and-set: appends new chunks of one producer if session and producer are as the caller
-- last saw them, and returns no row, having written nothing, if they are not. NULL in place of an
-- array is NULL in all rows.
--
-- Each statement has a snapshot of its own, taken under the session's lock: a step that was about
-- to rest has committed by then, and its has_work is seen. What is sealed is not woken, as in
-- storage.log.chunks.write.
--
-- Its plans are good however old the statistics are: one that was made while the tables were empty
-- would read all of them until they are analyzed. The keys of the chunks are checked within it, so
-- this holds for them as well.
CREATE FUNCTION write_if_unchanged(
    p_session uuid, p_head bigint, p_incarnation integer,
    p_producer text, p_epoch bigint, p_last bigint,
    p_kinds text[], p_roles text[], p_texts text[],
    p_observations text[], p_thoughts text[], p_actions text[],
    p_metadata jsonb[], p_digests bytea[], p_bytes bigint,
    p_observed_first boolean[],
    p_threads text[], p_sources text[], p_times timestamptz[],
    OUT woken uuid[], OUT applied bigint
) RETURNS SETOF record LANGUAGE plpgsql SET enable_seqscan = off SET jit = off AS $$
DECLARE
    v_tenant uuid;
    -- A sharded database takes no now() inside of CASE.
    v_now timestamptz := now();
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
    SET head = p_head + cardinality(p_kinds), content_bytes = content_bytes + p_bytes,
        has_unindexed = true
    WHERE session_key = p_session;
    INSERT INTO chunk (tenant_id, session_key, position, producer_id, producer_sequence,
                       kind, role, text, observation, thought, action, metadata, digest,
                       observed_first, thread, source, occurred_at)
    SELECT v_tenant, p_session, p_head + t.n, p_producer, p_last + t.n,
        t.kind, t.role, t.text, t.observation, t.thought, t.action, t.metadata, t.digest,
        t.observed_first, t.thread, t.source, t.occurred_at
    FROM unnest(p_kinds, p_roles, p_texts, p_observations, p_thoughts, p_actions,
                p_metadata, p_digests, p_observed_first, p_threads, p_sources, p_times)
        WITH ORDINALITY
        AS t (kind, role, text, observation, thought, action, metadata, digest, observed_first,
              thread, source, occurred_at, n);
    WITH roused AS (
        UPDATE memory SET has_work = true, resting = false,
            ready_at = CASE WHEN resting THEN v_now ELSE greatest(ready_at, v_now) END
        WHERE session_key = p_session AND (NOT has_work OR resting) AND status <> 'sealed'
            AND (wake_position IS NULL OR wake_position <= p_head + cardinality(p_kinds))
        RETURNING memory_id, status
    )
    SELECT array_agg(memory_id) FILTER (WHERE status = 'active') INTO woken FROM roused;
    SELECT min(applied_position) INTO applied FROM memory
    WHERE session_key = p_session AND status = 'active';
    RETURN NEXT;
END
$$;

-- The same for chunks that came by requests. Nothing is written when one of these was done before:
-- under the session's lock no other append can do it meanwhile.
CREATE FUNCTION write_requests_if_unchanged(
    p_session uuid, p_head bigint, p_incarnation integer,
    p_producer text, p_epoch bigint, p_last bigint,
    p_kinds text[], p_roles text[], p_texts text[],
    p_observations text[], p_thoughts text[], p_actions text[],
    p_metadata jsonb[], p_digests bytea[], p_bytes bigint,
    p_requests text[], p_request_digests bytea[], p_firsts bigint[], p_lasts bigint[],
    p_observed_first boolean[],
    p_threads text[], p_sources text[], p_times timestamptz[],
    OUT woken uuid[], OUT applied bigint
) RETURNS SETOF record LANGUAGE plpgsql SET enable_seqscan = off SET jit = off AS $$
DECLARE
    v_tenant uuid;
BEGIN
    SELECT tenant_id INTO v_tenant FROM session
    WHERE session_key = p_session AND head = p_head AND incarnation = p_incarnation
    FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    PERFORM FROM request WHERE session_key = p_session AND request_id = ANY (p_requests);
    IF FOUND THEN
        RETURN;
    END IF;
    SELECT a.woken, a.applied INTO woken, applied FROM write_if_unchanged(
        p_session, p_head, p_incarnation, p_producer, p_epoch, p_last, p_kinds, p_roles,
        p_texts, p_observations, p_thoughts, p_actions, p_metadata, p_digests, p_bytes,
        p_observed_first, p_threads, p_sources, p_times) AS a;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    INSERT INTO request (session_key, request_id, tenant_id, method, digest,
                         first_position, last_position)
    SELECT p_session, t.id, v_tenant, 'Append', t.digest, t.first, t.last
    FROM unnest(p_requests, p_request_digests, p_firsts, p_lasts) AS t (id, digest, first, last);
    RETURN NEXT;
END
$$;
