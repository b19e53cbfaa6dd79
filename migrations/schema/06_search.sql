-- What chunks are found by: their words, and vectors of what they say.
--
-- The indexes that need extensions (one over session and words, one over vectors) are not here:
-- storage.search.setup makes those that the server can have.

CREATE TABLE chunk_word (
    session_key uuid NOT NULL,
    position bigint NOT NULL,
    tenant_id uuid NOT NULL,
    -- By the language of the session.
    words tsvector NOT NULL,
    -- How long the chunk's text is, in words as the text search counts their places.
    length integer NOT NULL,
    -- No foreign key, which would lock the row of the chunk: one statement makes it of the chunk,
    -- and it can be made again.
    PRIMARY KEY (session_key, position)
);
ALTER TABLE chunk_word ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY chunk_word_of_tenant ON chunk_word TO palimpsest_app
    USING (tenant_id = current_setting('app.tenant')::uuid)
    WITH CHECK (tenant_id = current_setting('app.tenant')::uuid);
CREATE POLICY chunk_word_removed ON chunk_word
    AS RESTRICTIVE FOR DELETE TO palimpsest_app
    USING (session_key IN (SELECT session_key FROM removal));
GRANT SELECT, INSERT, UPDATE, DELETE ON chunk_word TO palimpsest_app;


-- A run of chunks whose words are in posting_list; only long sessions have any. They begin at
-- position 1 and have no gaps between them.
CREATE TABLE posting_block (
    session_key uuid NOT NULL,
    last_position bigint NOT NULL,
    tenant_id uuid NOT NULL,
    first_position bigint NOT NULL,
    -- The lengths of its chunks together, as in chunk_word.
    words bigint NOT NULL,
    PRIMARY KEY (session_key, last_position),
    CONSTRAINT posting_block_session_fkey FOREIGN KEY (session_key, tenant_id)
        REFERENCES session (session_key, tenant_id),
    CONSTRAINT posting_block_length CHECK (last_position - first_position < 65536)
);
ALTER TABLE posting_block ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY posting_block_of_tenant ON posting_block TO palimpsest_app
    USING (tenant_id = current_setting('app.tenant')::uuid)
    WITH CHECK (tenant_id = current_setting('app.tenant')::uuid);
CREATE POLICY posting_block_removed ON posting_block
    AS RESTRICTIVE FOR DELETE TO palimpsest_app
    USING (session_key IN (SELECT session_key FROM removal));
GRANT SELECT, INSERT, DELETE ON posting_block TO palimpsest_app;


-- Which chunks of a block have a word, as storage.search.posting_lists writes it.
CREATE TABLE posting_list (
    session_key uuid NOT NULL,
    -- The word; of words that few chunks have: what several share.
    key text COLLATE "C" NOT NULL,
    -- Of the block.
    last_position bigint NOT NULL,
    tenant_id uuid NOT NULL,
    -- In ascending order; the others have as many elements.
    words text[] NOT NULL,
    groups bytea[] NOT NULL,
    places bytea[] NOT NULL,
    PRIMARY KEY (session_key, key, last_position),
    CONSTRAINT posting_list_block_fkey
        FOREIGN KEY (session_key, last_position) REFERENCES posting_block
);
-- Places are not smaller when they are compressed, and are read often.
ALTER TABLE posting_list ALTER COLUMN places SET STORAGE EXTERNAL;
ALTER TABLE posting_list ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY posting_list_of_tenant ON posting_list TO palimpsest_app
    USING (tenant_id = current_setting('app.tenant')::uuid)
    WITH CHECK (tenant_id = current_setting('app.tenant')::uuid);
CREATE POLICY posting_list_removed ON posting_list
    AS RESTRICTIVE FOR DELETE TO palimpsest_app
    USING (session_key IN (SELECT session_key FROM removal));
GRANT SELECT, INSERT, DELETE ON posting_list TO palimpsest_app;


CREATE TABLE chunk_vector (
    session_key uuid NOT NULL,
    position bigint NOT NULL,
    -- 0, 1, 2 …: a chunk that is too long for the model has several.
    part integer NOT NULL,
    tenant_id uuid NOT NULL,
    model text NOT NULL,
    -- The characters of the chunk's text that it stands for.
    from_character integer NOT NULL,
    to_character integer NOT NULL,
    -- Of length 1. An array, so that it can be stored where pgvector is not installed; searching
    -- casts it to pgvector's type.
    embedding real[] NOT NULL,
    PRIMARY KEY (session_key, position, part),
    CONSTRAINT chunk_vector_chunk_fkey FOREIGN KEY (session_key, position) REFERENCES chunk,
    CONSTRAINT chunk_vector_span
        CHECK (0 <= from_character AND from_character < to_character)
);
-- The numbers of a vector are not smaller when they are compressed.
ALTER TABLE chunk_vector ALTER COLUMN embedding SET STORAGE EXTERNAL;
ALTER TABLE chunk_vector ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY chunk_vector_of_tenant ON chunk_vector TO palimpsest_app
    USING (tenant_id = current_setting('app.tenant')::uuid)
    WITH CHECK (tenant_id = current_setting('app.tenant')::uuid);
-- Not for removals alone: vectors of another model replace those that are there.
GRANT SELECT, INSERT, UPDATE, DELETE ON chunk_vector TO palimpsest_app;
