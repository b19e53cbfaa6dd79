-- Answers, with all about them.

CREATE TABLE answer (
    session_key uuid NOT NULL,
    answer_id uuid NOT NULL,
    tenant_id uuid NOT NULL,
    -- NULL: the log itself is read, or the automatic reader has not chosen.
    memory_id uuid,
    query text NOT NULL,
    status text NOT NULL DEFAULT 'pending' CONSTRAINT answer_status
        CHECK (status IN ('pending', 'complete', 'failed', 'cancelled', 'abandoned')),
    -- What it reads; fixed when it is asked.
    revision bigint NOT NULL,
    applied_position bigint NOT NULL,
    text text NOT NULL DEFAULT '',
    citations jsonb NOT NULL DEFAULT '[]',
    model text NOT NULL DEFAULT '',
    failure text NOT NULL DEFAULT '',
    attempts integer NOT NULL DEFAULT 0,
    ready_at timestamptz NOT NULL DEFAULT now(),
    created_at timestamptz NOT NULL DEFAULT now(),
    -- How the tree is to be navigated; NULL for other readers.
    navigation jsonb,
    -- Why there is no answer, where there is none.
    no_answer text,
    -- The totals of the navigation; NULL until it is complete, and for other readers.
    statistics jsonb,
    -- The reader that is asked; NULL: the one for that kind of memory.
    reader text,
    -- How the log is to be browsed; NULL for other readers.
    browsing jsonb,
    -- The model that reads, where no memory's spec says; empty: the service's.
    wanted_model text NOT NULL DEFAULT '',
    -- JSON Schema of the answer, and the answer by it; NULL where none is asked for.
    response_schema jsonb,
    value jsonb,
    -- What the automatic reader chose; NULL where it was not asked.
    chosen jsonb,
    -- Whether the text is streamed as it is written.
    tells_text boolean NOT NULL DEFAULT false,
    -- A memory that the automatic reader chooses must have applied the log up to here.
    wanted_position bigint NOT NULL DEFAULT 0,
    -- The model whose condition it waits for, and why; NULL: it waits for none.
    waiting_model text,
    waiting_cause text,
    -- The options of a multiple-choice question.
    options jsonb NOT NULL DEFAULT '[]',
    -- Whether the answer is an option that nothing says, and whether its text was cut off.
    guessed boolean NOT NULL DEFAULT false,
    truncated boolean NOT NULL DEFAULT false,
    -- The first and the last chunk of what the reader did not go through; NULL: nothing.
    left_out bigint[],
    -- The server process whose client was the last to begin to wait; NULL: all of them left, or it
    -- is made in any case.
    waiter uuid,
    -- Until when it is made though no client waits for it; NULL: in any case.
    wanted_until timestamptz,
    -- Which chunks may be cited, and are read where the log is read; NULL: all.
    chunk_filter jsonb,
    PRIMARY KEY (session_key, answer_id),
    CONSTRAINT answer_revision_fkey
        FOREIGN KEY (session_key, memory_id, revision) REFERENCES revision
);
-- For the queue: see take_work.
CREATE INDEX answer_turns ON answer (tenant_id, ready_at)
    WHERE status = 'pending' AND ready_at > '-infinity';
-- What counts as pending: not those that all clients have left.
CREATE INDEX answer_pending ON answer (tenant_id, answer_id)
    WHERE status = 'pending' AND (waiter IS NOT NULL OR wanted_until IS NULL);
CREATE INDEX answer_waiting ON answer (waiting_model, tenant_id, ready_at)
    WHERE waiting_model IS NOT NULL;
CREATE INDEX answer_by_memory ON answer (session_key, memory_id, created_at, answer_id);
CREATE INDEX answer_by_session ON answer (session_key, created_at, answer_id);
ALTER TABLE answer ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY answer_of_tenant ON answer TO palimpsest_app
    USING (tenant_id = current_setting('app.tenant')::uuid)
    WITH CHECK (tenant_id = current_setting('app.tenant')::uuid);
CREATE POLICY answer_removed ON answer
    AS RESTRICTIVE FOR DELETE TO palimpsest_app
    USING (session_key IN (SELECT session_key FROM removal));
CREATE POLICY answer_runnable ON answer FOR SELECT TO palimpsest_sweeper
    USING (status = 'pending');
GRANT SELECT, INSERT, DELETE ON answer TO palimpsest_app;
-- memory_id: answers outlive the memory that they read.
GRANT UPDATE (
    memory_id, status, text, citations, model, failure, attempts, ready_at, no_answer, statistics,
    value, chosen, waiting_model, waiting_cause, guessed, truncated, left_out, waiter, wanted_until
) ON answer TO palimpsest_app;
GRANT SELECT (session_key, answer_id, tenant_id, status, ready_at, waiting_model)
    ON answer TO palimpsest_sweeper;

-- The bound of what a tenant may have pending: as count_pending_schema_draft, by answer_pending.
CREATE FUNCTION count_pending_answer(p_tenant uuid, p_limit integer)
RETURNS bigint LANGUAGE plpgsql STABLE SET enable_sort = off AS $$
BEGIN
    RETURN (
        SELECT count(*) FROM (
            SELECT FROM answer
            WHERE tenant_id = p_tenant
                AND status = 'pending' AND (waiter IS NOT NULL OR wanted_until IS NULL)
            ORDER BY answer_id LIMIT p_limit
        ) AS counted
    );
END
$$;


-- The text of an answer as it is written, piece by piece. The whole is in answer.
CREATE TABLE answer_text (
    session_key uuid NOT NULL,
    answer_id uuid NOT NULL,
    ordinal integer NOT NULL,
    tenant_id uuid NOT NULL,
    text text NOT NULL,
    -- What was streamed before is void: the text begins anew with this piece.
    restarts boolean NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (session_key, answer_id, ordinal),
    CONSTRAINT answer_text_answer_fkey FOREIGN KEY (session_key, answer_id) REFERENCES answer
);
ALTER TABLE answer_text ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY answer_text_of_tenant ON answer_text TO palimpsest_app
    USING (tenant_id = current_setting('app.tenant')::uuid)
    WITH CHECK (tenant_id = current_setting('app.tenant')::uuid);
GRANT SELECT, INSERT, DELETE ON answer_text TO palimpsest_app;


-- A client's opinion of an answer; the last one counts.
CREATE TABLE answer_rating (
    session_key uuid NOT NULL,
    answer_id uuid NOT NULL,
    tenant_id uuid NOT NULL,
    -- 1: good; -1: bad.
    rating integer NOT NULL CONSTRAINT answer_rating_rating CHECK (rating IN (-1, 1)),
    comment text NOT NULL,
    -- What would have been right; empty when it is not said.
    expected text NOT NULL,
    rated_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (session_key, answer_id),
    CONSTRAINT answer_rating_answer_fkey FOREIGN KEY (session_key, answer_id) REFERENCES answer
);
ALTER TABLE answer_rating ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY answer_rating_of_tenant ON answer_rating TO palimpsest_app
    USING (tenant_id = current_setting('app.tenant')::uuid)
    WITH CHECK (tenant_id = current_setting('app.tenant')::uuid);
CREATE POLICY answer_rating_removed ON answer_rating
    AS RESTRICTIVE FOR DELETE TO palimpsest_app
    USING (session_key IN (SELECT session_key FROM removal));
GRANT SELECT, INSERT, UPDATE (rating, comment, expected, rated_at), DELETE
    ON answer_rating TO palimpsest_app;


-- What a navigation looked at and did, written as it happens.
CREATE TABLE trajectory_event (
    session_key uuid NOT NULL,
    answer_id uuid NOT NULL,
    ordinal integer NOT NULL,
    tenant_id uuid NOT NULL,
    -- As service.domain.answers.trajectory.Event, without the ordinal.
    event jsonb NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (session_key, answer_id, ordinal),
    CONSTRAINT trajectory_event_answer_fkey FOREIGN KEY (session_key, answer_id) REFERENCES answer
);
ALTER TABLE trajectory_event ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY trajectory_event_of_tenant ON trajectory_event TO palimpsest_app
    USING (tenant_id = current_setting('app.tenant')::uuid)
    WITH CHECK (tenant_id = current_setting('app.tenant')::uuid);
CREATE POLICY trajectory_event_removed ON trajectory_event
    AS RESTRICTIVE FOR DELETE TO palimpsest_app
    USING (session_key IN (SELECT session_key FROM removal));
GRANT SELECT, INSERT, DELETE ON trajectory_event TO palimpsest_app;
