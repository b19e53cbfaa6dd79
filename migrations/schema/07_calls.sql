-- The ledger of model calls, the calls under way, and the conditions of models.

-- The ledger, which also replays a reply instead of paying again. It has no primary key: no
-- statement looks a call up by its id, and call_once keeps calls apart.
CREATE TABLE call (
    session_key uuid NOT NULL,
    call_id uuid NOT NULL,
    tenant_id uuid NOT NULL,
    -- NULL for calls that no memory made; the foreign key then has nothing to check.
    memory_id uuid,
    -- In the order of its bytes, so that a range finds all that begin alike.
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
    -- Which deployment of the model was asked; empty where there is one only.
    deployment text NOT NULL DEFAULT '',
    -- Why the provider's cache had other tokens than predicted.
    residual text,
    -- Of output_tokens; NULL is unknown.
    reasoning_tokens bigint,
    -- How the reply ended; NULL for a failed call.
    ended text,
    -- The words of a refusal, or the provider's own name of the end.
    said text,
    CONSTRAINT call_memory_fkey FOREIGN KEY (session_key, memory_id) REFERENCES memory,
    CONSTRAINT call_outcome CHECK ((reply IS NULL) <> (failure IS NULL))
);
CREATE UNIQUE INDEX call_once ON call (session_key, key) WHERE reply IS NOT NULL;
CREATE INDEX call_by_memory ON call (session_key, memory_id, occasion);
ALTER TABLE call ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY call_of_tenant ON call TO palimpsest_app
    USING (tenant_id = current_setting('app.tenant')::uuid)
    WITH CHECK (tenant_id = current_setting('app.tenant')::uuid);
CREATE POLICY call_removed ON call
    AS RESTRICTIVE FOR DELETE TO palimpsest_app
    USING (session_key IN (SELECT session_key FROM removal));
-- Calls of a memory that is deleted keep their figures and lose their texts.
CREATE POLICY call_blanked ON call AS RESTRICTIVE FOR UPDATE TO palimpsest_app
    USING (session_key IN (SELECT session_key FROM removal));
GRANT SELECT, INSERT, UPDATE (memory_id, occasion, key, reply, failure, said), DELETE
    ON call TO palimpsest_app;


-- A call that is about to be made or under way: there from before it until its outcome is stored.
-- A process that finds one whose lease holds waits for that outcome.
CREATE TABLE intent (
    session_key uuid NOT NULL,
    key bytea NOT NULL,
    tenant_id uuid NOT NULL,
    memory_id uuid,
    purpose text NOT NULL,
    model text NOT NULL,
    deployment text NOT NULL DEFAULT '',
    -- Rises when another process takes the call over.
    fence bigint NOT NULL DEFAULT 1,
    lease_until timestamptz NOT NULL,
    -- What the call may cost, for budgets.
    reserved_tokens bigint NOT NULL,
    reserved_micro_usd bigint NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    -- No foreign key, which would lock the rows of the session and the memory: it is there for the
    -- time of a call, and what stays, the call and its sum, has them.
    PRIMARY KEY (session_key, key)
);
-- For budgets. The condition is so of each row: as of session_of_tenant_by_bytes.
CREATE INDEX intent_of_tenant ON intent (tenant_id) WHERE created_at > '-infinity';
ALTER TABLE intent ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY intent_of_tenant ON intent TO palimpsest_app
    USING (tenant_id = current_setting('app.tenant')::uuid)
    WITH CHECK (tenant_id = current_setting('app.tenant')::uuid);
GRANT SELECT, INSERT, UPDATE, DELETE ON intent TO palimpsest_app;


-- What keeps every call from a model, and the work that waits for it. It belongs to no tenant: its
-- cause has no text of any.
CREATE TABLE model_condition (
    -- A deployment's name, or the model where it has none.
    place text PRIMARY KEY,
    model text NOT NULL,
    -- One of service/domain/prompting/faults.py.
    fault text NOT NULL,
    cause text NOT NULL,
    failures integer NOT NULL DEFAULT 1,
    since timestamptz NOT NULL DEFAULT now(),
    -- When one call may find out whether it has passed.
    probe_at timestamptz NOT NULL
);
GRANT SELECT, INSERT, UPDATE, DELETE ON model_condition TO palimpsest_app;
