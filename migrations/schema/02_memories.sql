-- Memories of every kind, their revisions, and the long work on them.
--
-- What makes steps exactly-once is here, in keys: read `revision` first.

CREATE TABLE memory (
    session_key uuid NOT NULL,
    -- uuid5(session_key, name).
    memory_id uuid NOT NULL,
    tenant_id uuid NOT NULL,
    name text NOT NULL,
    kind text NOT NULL CONSTRAINT memory_kind CHECK (kind IN ('prism', 'tree', 'state')),
    spec jsonb NOT NULL,
    revision bigint NOT NULL DEFAULT 0,
    applied_position bigint NOT NULL DEFAULT 0,
    -- Raised by every worker that takes the memory over; fences the one before.
    epoch bigint NOT NULL DEFAULT 0,
    status text NOT NULL DEFAULT 'active'
        CONSTRAINT memory_status CHECK (status IN ('active', 'stalled', 'sealed')),
    -- Set by the append that finds it unset, cleared by the step that reaches the head under the
    -- session's lock. So a busy stream does not write here.
    has_work boolean NOT NULL DEFAULT false,
    ready_at timestamptz NOT NULL DEFAULT now(),
    -- Failed tries of the step at the cursor.
    attempts integer NOT NULL DEFAULT 0,
    created_at timestamptz NOT NULL DEFAULT now(),
    -- The schema since it got more fields; NULL: the spec's.
    schema_source text,
    rebuilt_from text,
    -- Chunks up to here are read without waiting for more.
    flush_position bigint NOT NULL DEFAULT 0,
    -- A consolidation is wanted once everything up to here is read.
    consolidate_position bigint,
    -- The size of the memory after its last consolidation: it is worth another try only when the
    -- memory has grown since.
    consolidated_tokens bigint NOT NULL DEFAULT 0,
    -- What the folding policy has counted since the last fold.
    fold_state jsonb,
    -- Why no call may be made now: a budget is used up.
    held_reason text,
    -- A tree is closed once everything up to here is in it, and reads nothing after it.
    seal_position bigint,
    -- It has nothing to do before `ready_at`, unless something is appended.
    resting boolean NOT NULL DEFAULT false,
    -- An append wakes it when the log reaches this position; NULL: any append does.
    wake_position bigint,
    -- The model whose condition it waits for, and why; NULL: no model delays its next try.
    waiting_model text,
    waiting_cause text,
    -- What rejections of its steps mean for readers: service/domain/prism/losses.py.
    losses jsonb,
    -- Set: deleted, and hidden by row-level security until its rows are gone.
    deleted_at timestamptz,
    PRIMARY KEY (session_key, memory_id),
    CONSTRAINT memory_session_fkey FOREIGN KEY (session_key, tenant_id)
        REFERENCES session (session_key, tenant_id)
) WITH (fillfactor = 90);
-- For the queue: see take_work.
CREATE INDEX memory_turns ON memory (tenant_id, ready_at)
    WHERE has_work AND status = 'active' AND ready_at > '-infinity';
-- For budgets that are raised: which memories they hold.
CREATE INDEX memory_held ON memory (tenant_id, session_key) WHERE held_reason IS NOT NULL;
CREATE INDEX memory_waiting ON memory (waiting_model, tenant_id, ready_at)
    WHERE waiting_model IS NOT NULL;


CREATE TABLE revision (
    session_key uuid NOT NULL,
    memory_id uuid NOT NULL,
    revision bigint NOT NULL,
    tenant_id uuid NOT NULL,
    parent_revision bigint,
    -- The step read positions from_position + 1 to to_position.
    from_position bigint NOT NULL,
    to_position bigint NOT NULL,
    kind text NOT NULL CONSTRAINT revision_kind CHECK (
        kind IN ('create', 'step', 'skip', 'fold', 'edit', 'rollback', 'consolidation', 'schema',
                 'build', 'seal', 'episode')
    ),
    epoch bigint NOT NULL,
    -- SHA-256 of the value after it.
    digest bytea NOT NULL,
    last_chunk bigint GENERATED ALWAYS AS (NULLIF(to_position, 0)) STORED,
    created_at timestamptz NOT NULL DEFAULT now(),
    -- Of the author of an edit or a rollback.
    comment text NOT NULL DEFAULT '',
    -- Whose state a rollback restored.
    restored_revision bigint,
    -- The schema from this revision on, when it changed.
    schema_source text,
    PRIMARY KEY (session_key, memory_id, revision),
    -- What the chain below refers to.
    CONSTRAINT revision_end UNIQUE (session_key, memory_id, revision, to_position),
    CONSTRAINT revision_memory_fkey FOREIGN KEY (session_key, memory_id) REFERENCES memory,
    -- The chain: a revision begins where its parent ended. With the primary key it leaves no room
    -- for a gap, a repeat or a fork.
    CONSTRAINT revision_chain_fkey
        FOREIGN KEY (session_key, memory_id, parent_revision, from_position)
        REFERENCES revision (session_key, memory_id, revision, to_position),
    CONSTRAINT revision_chunk_fkey FOREIGN KEY (session_key, last_chunk)
        REFERENCES chunk (session_key, position),
    CONSTRAINT revision_restored_fkey FOREIGN KEY (session_key, memory_id, restored_revision)
        REFERENCES revision (session_key, memory_id, revision),
    CONSTRAINT revision_root CHECK ((revision = 0) = (parent_revision IS NULL)),
    CONSTRAINT revision_parent CHECK (parent_revision = revision - 1),
    CONSTRAINT revision_range CHECK (
        (kind IN ('step', 'skip')) = (to_position > from_position)
        AND to_position >= from_position AND from_position >= 0
    ),
    CONSTRAINT revision_restored CHECK ((kind = 'rollback') = (restored_revision IS NOT NULL)),
    CONSTRAINT revision_schema CHECK ((kind = 'schema') = (schema_source IS NOT NULL))
);
-- No position begins two steps: what reads nothing has NULL, which is distinct from all. Removals
-- look for the child of a revision by the columns before that.
CREATE UNIQUE INDEX revision_once ON revision (
    session_key, memory_id, from_position, (NULLIF(to_position > from_position, false))
);
CREATE INDEX revision_rollbacks ON revision (session_key, memory_id, revision)
    WHERE kind = 'rollback';
-- For removals: what refers to a chunk that is removed.
CREATE INDEX revision_by_chunk ON revision (session_key, last_chunk);
CREATE INDEX revision_restoring ON revision (session_key, memory_id, restored_revision)
    WHERE restored_revision IS NOT NULL;

-- The cursor of a memory is always one that a revision wrote. The two tables refer to each other, so
-- this key is not in the table, and is checked when the transaction commits. It is added before
-- row-level security, which would bind the query that validates it.
ALTER TABLE memory ADD CONSTRAINT memory_revision_fkey
    FOREIGN KEY (session_key, memory_id, revision, applied_position)
    REFERENCES revision (session_key, memory_id, revision, to_position)
    DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE memory ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
-- As of sessions: what is deleted is shown to its removal only.
CREATE POLICY memory_of_tenant ON memory TO palimpsest_app
    USING (
        tenant_id = current_setting('app.tenant')::uuid
        AND (deleted_at IS NULL OR current_setting('app.removing', true) = 'on')
    )
    WITH CHECK (tenant_id = current_setting('app.tenant')::uuid);
CREATE POLICY memory_removed ON memory
    AS RESTRICTIVE FOR DELETE TO palimpsest_app
    USING (session_key IN (SELECT session_key FROM removal));
CREATE POLICY memory_runnable ON memory FOR SELECT TO palimpsest_sweeper
    USING (has_work AND status = 'active');
GRANT SELECT, INSERT, DELETE ON memory TO palimpsest_app;
GRANT UPDATE (
    spec, revision, applied_position, epoch, status, has_work, ready_at, attempts, schema_source,
    flush_position, consolidate_position, consolidated_tokens, fold_state, held_reason,
    seal_position, resting, wake_position, waiting_model, waiting_cause, losses, deleted_at
) ON memory TO palimpsest_app;
GRANT SELECT (
    session_key, memory_id, tenant_id, applied_position, status, has_work, ready_at, held_reason,
    seal_position, resting, waiting_model
) ON memory TO palimpsest_sweeper;

ALTER TABLE revision ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY revision_of_tenant ON revision TO palimpsest_app
    USING (tenant_id = current_setting('app.tenant')::uuid)
    WITH CHECK (tenant_id = current_setting('app.tenant')::uuid);
CREATE POLICY revision_removed ON revision
    AS RESTRICTIVE FOR DELETE TO palimpsest_app
    USING (session_key IN (SELECT session_key FROM removal));
GRANT SELECT, INSERT, DELETE ON revision TO palimpsest_app;


CREATE TABLE dead_letter (
    session_key uuid NOT NULL,
    memory_id uuid NOT NULL,
    letter_id uuid NOT NULL,
    tenant_id uuid NOT NULL,
    -- The step that failed: positions from_position + 1 to to_position.
    from_position bigint NOT NULL,
    to_position bigint NOT NULL,
    attempts integer NOT NULL,
    cause text NOT NULL,
    -- NULL while the memory is stalled by it.
    resolution text
        CONSTRAINT dead_letter_resolution CHECK (resolution IN ('retried', 'skipped')),
    created_at timestamptz NOT NULL DEFAULT now(),
    -- The model that refused it for what may be the deployment's fault: see Circuits.
    ambiguous_model text,
    PRIMARY KEY (session_key, memory_id, letter_id),
    CONSTRAINT dead_letter_memory_fkey FOREIGN KEY (session_key, memory_id) REFERENCES memory
);
-- A memory is stalled by one thing at a time.
CREATE UNIQUE INDEX dead_letter_open ON dead_letter (session_key, memory_id)
    WHERE resolution IS NULL;
-- Memories that stalled on what may turn out to be their model's fault.
CREATE INDEX dead_letter_ambiguous ON dead_letter (ambiguous_model)
    WHERE ambiguous_model IS NOT NULL AND resolution IS NULL;
ALTER TABLE dead_letter ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY dead_letter_of_tenant ON dead_letter TO palimpsest_app
    USING (tenant_id = current_setting('app.tenant')::uuid)
    WITH CHECK (tenant_id = current_setting('app.tenant')::uuid);
CREATE POLICY dead_letter_removed ON dead_letter
    AS RESTRICTIVE FOR DELETE TO palimpsest_app
    USING (session_key IN (SELECT session_key FROM removal));
CREATE POLICY dead_letter_measured ON dead_letter FOR SELECT TO palimpsest_sweeper
    USING (resolution IS NULL AND current_setting('app.measuring', true) = 'on');
GRANT SELECT, INSERT, UPDATE (resolution), DELETE ON dead_letter TO palimpsest_app;
GRANT SELECT (session_key, memory_id, resolution) ON dead_letter TO palimpsest_sweeper;


-- Long work that clients requested, and how it ended. The memory, or the schema draft, that it
-- works on says how far it is before that.
CREATE TABLE operation (
    session_key uuid NOT NULL,
    -- Of a schema, its draft.
    operation_id uuid NOT NULL,
    tenant_id uuid NOT NULL,
    kind text NOT NULL CONSTRAINT operation_kind
        CHECK (kind IN ('rebuild', 'consolidation', 'schema', 'seal')),
    -- What it changes or builds; NULL and empty of a schema.
    memory_id uuid,
    memory_name text NOT NULL,
    -- Everything up to here is to be read; 0 of a schema.
    goal bigint NOT NULL,
    -- How it ended, as it was first reported; NULL before.
    state text CONSTRAINT operation_state CHECK (state IN ('done', 'failed', 'cancelled')),
    -- Why it failed: reason, message and metadata.
    error jsonb,
    ended_at timestamptz,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (session_key, operation_id),
    CONSTRAINT operation_session_fkey FOREIGN KEY (session_key, tenant_id)
        REFERENCES session (session_key, tenant_id) ON DELETE CASCADE,
    CONSTRAINT operation_memory CHECK ((kind = 'schema') = (memory_id IS NULL)),
    CONSTRAINT operation_end CHECK ((state IS NULL) = (ended_at IS NULL)),
    CONSTRAINT operation_error CHECK ((state = 'failed') IS TRUE = (error IS NOT NULL))
);
-- A memory is consolidated by one operation at a time.
CREATE UNIQUE INDEX operation_consolidation ON operation (session_key, memory_id)
    WHERE kind = 'consolidation' AND state IS NULL;
-- A tree is sealed by one operation at a time.
CREATE UNIQUE INDEX operation_seal ON operation (session_key, memory_id)
    WHERE kind = 'seal' AND state IS NULL;
CREATE INDEX operation_by_session ON operation (session_key, created_at, operation_id);
CREATE INDEX operation_by_tenant ON operation (tenant_id, created_at, operation_id);
CREATE INDEX operation_age ON operation (created_at);
ALTER TABLE operation ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY operation_of_tenant ON operation TO palimpsest_app
    USING (tenant_id = current_setting('app.tenant')::uuid)
    WITH CHECK (tenant_id = current_setting('app.tenant')::uuid);
CREATE POLICY operation_removed ON operation
    AS RESTRICTIVE FOR DELETE TO palimpsest_app
    USING (session_key IN (SELECT session_key FROM removal));
-- Those that are swept, and no others.
CREATE POLICY operation_swept ON operation TO palimpsest_sweeper
    USING (created_at < now() - interval '30 days');
GRANT SELECT, INSERT, UPDATE (goal, state, error, ended_at), DELETE ON operation TO palimpsest_app;
GRANT SELECT, DELETE ON operation TO palimpsest_sweeper;
