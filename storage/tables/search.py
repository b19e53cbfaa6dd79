"""Tables of the search index: words and vectors of chunks, and entries of memories.

Not here are indexes that need extensions (one over session and words, one over vectors):
`storage.search.setup` creates those that the server supports.
"""

from sqlalchemy import (
    CheckConstraint,
    Column,
    ForeignKeyConstraint,
    Index,
    Integer,
    PrimaryKeyConstraint,
    Table,
    Text,
    Uuid,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, BYTEA, REAL, TSVECTOR

from storage.tables.common import count, ids, metadata, of_session

chunk_word = Table(
    "chunk_word",
    metadata,
    *ids("session_key", "tenant_id"),
    count("position"),
    # In the language of the session.
    Column("words", TSVECTOR, nullable=False),
    # The length of the chunk's text in words, as `text_search.length_of` counts them.
    Column("length", Integer, nullable=False),
    # No foreign key: one statement computes it from the chunk, and can do so again.
    PrimaryKeyConstraint("session_key", "position", name="chunk_word_pkey"),
)


#: A run of chunks whose words are in posting_list; only long sessions have any. They begin at
#: position 1 and have no gaps between them.
posting_block = Table(
    "posting_block",
    metadata,
    *ids("session_key", "tenant_id"),
    count("last_position"),
    count("first_position"),
    # The sum of the lengths of its chunks, as in chunk_word.
    count("words"),
    PrimaryKeyConstraint("session_key", "last_position", name="posting_block_pkey"),
    of_session("posting_block_session_fkey"),
    CheckConstraint("last_position - first_position < 65536", name="posting_block_length"),
)


#: Which chunks of a block have a word, as `storage.search.posting_lists` writes it.
posting_list = Table(
    "posting_list",
    metadata,
    *ids("session_key", "tenant_id"),
    # The word; for words of few chunks, a key that several share.
    Column("key", Text(collation="C"), nullable=False),
    # The last position of the block.
    count("last_position"),
    # In ascending order; the other arrays have as many elements.
    Column("words", ARRAY(Text), nullable=False),
    Column("groups", ARRAY(BYTEA), nullable=False),
    Column("places", ARRAY(BYTEA), nullable=False),
    PrimaryKeyConstraint("session_key", "key", "last_position", name="posting_list_pkey"),
    ForeignKeyConstraint(
        ["session_key", "last_position"],
        ["posting_block.session_key", "posting_block.last_position"],
        name="posting_list_block_fkey",
    ),
)


chunk_vector = Table(
    "chunk_vector",
    metadata,
    *ids("session_key", "tenant_id"),
    count("position"),
    # 0, 1, 2 …: a chunk that is too long for the model has several.
    Column("part", Integer, nullable=False),
    Column("model", Text, nullable=False),
    # The characters of the chunk's text that it represents.
    Column("from_character", Integer, nullable=False),
    Column("to_character", Integer, nullable=False),
    # A vector of length 1. An array, so that it can be stored without pgvector; searches cast it to
    # pgvector's type.
    Column("embedding", ARRAY(REAL), nullable=False),
    PrimaryKeyConstraint("session_key", "position", "part", name="chunk_vector_pkey"),
    ForeignKeyConstraint(
        ["session_key", "position"],
        ["chunk.session_key", "chunk.position"],
        name="chunk_vector_chunk_fkey",
    ),
    CheckConstraint(
        "0 <= from_character AND from_character < to_character", name="chunk_vector_span"
    ),
)


memory_entry = Table(
    "memory_entry",
    metadata,
    # A small part of a memory that a search finds: service/domain/search/entries.py.
    *ids("session_key", "memory_id"),
    # Of its path and its part, since a path may be too long for a key.
    Column("entry_id", Uuid, nullable=False),
    *ids("tenant_id"),
    # A normalized path of a PRISM memory; the id of a node; level and revision of a state vector.
    Column("path", Text, nullable=False),
    # 0, 1, 2 …: the parts of a long text.
    Column("part", Integer, nullable=False),
    # JSON.
    Column("value", Text, nullable=False),
    # The words of its text in the language of the session, and its length in words.
    Column("words", TSVECTOR, nullable=False),
    Column("length", Integer, nullable=False),
    # The revision that wrote what it says.
    count("revision"),
    # The chunks that it rests on; both 0: none.
    count("first_position"),
    count("last_position"),
    # The model of the vector; NULL: it has none yet.
    Column("model", Text),
    # A vector of length 1 of its text.
    Column("embedding", ARRAY(REAL)),
    PrimaryKeyConstraint("session_key", "memory_id", "entry_id", name="memory_entry_pkey"),
    # The release before does not know these rows: they go with their memory.
    ForeignKeyConstraint(
        ["session_key", "memory_id"],
        ["memory.session_key", "memory.memory_id"],
        name="memory_entry_memory_fkey",
        ondelete="CASCADE",
    ),
    CheckConstraint(
        "0 <= first_position AND first_position <= last_position", name="memory_entry_positions"
    ),
    CheckConstraint("(model IS NULL) = (embedding IS NULL)", name="memory_entry_embedded"),
    Index("memory_entry_unembedded", "session_key", postgresql_where=text("model IS NULL")),
    # Those that were written last: recalls read them.
    Index("memory_entry_newest", "session_key", "revision"),
)
