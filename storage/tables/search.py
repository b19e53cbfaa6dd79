"""What chunks are found by: their words, and vectors of what they say.

The indexes that need extensions (one over session and words, one over vectors) are not
here: `storage.search_setup` makes those that the server can have.
"""

from sqlalchemy import (
    CheckConstraint,
    Column,
    ForeignKeyConstraint,
    Integer,
    PrimaryKeyConstraint,
    Table,
    Text,
    Uuid,
)
from sqlalchemy.dialects.postgresql import ARRAY, REAL, TSVECTOR

from storage.tables.common import count, metadata

chunk_word = Table(
    "chunk_word",
    metadata,
    Column("session_key", Uuid, nullable=False),
    count("position"),
    Column("tenant_id", Uuid, nullable=False),
    # By the language of the session.
    Column("words", TSVECTOR, nullable=False),
    # How long the chunk's text is, in words as the text search counts their places.
    Column("length", Integer, nullable=False),
    PrimaryKeyConstraint("session_key", "position", name="chunk_word_pkey"),
    ForeignKeyConstraint(
        ["session_key", "position"],
        ["chunk.session_key", "chunk.position"],
        name="chunk_word_chunk_fkey",
    ),
)


chunk_vector = Table(
    "chunk_vector",
    metadata,
    Column("session_key", Uuid, nullable=False),
    count("position"),
    # 0, 1, 2 …: a chunk that is too long for the model has several.
    Column("part", Integer, nullable=False),
    Column("tenant_id", Uuid, nullable=False),
    Column("model", Text, nullable=False),
    # The characters of the chunk's text that it stands for.
    Column("from_character", Integer, nullable=False),
    Column("to_character", Integer, nullable=False),
    # Of length 1. An array, so that it can be stored where pgvector is not installed;
    # searching casts it to pgvector's type.
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
