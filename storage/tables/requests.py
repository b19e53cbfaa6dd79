"""Requests of clients that were done, so that a retry gets the result of the first call."""

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    DateTime,
    ForeignKeyConstraint,
    Index,
    LargeBinary,
    PrimaryKeyConstraint,
    Table,
    Text,
    Uuid,
    text,
)

from storage.tables.common import created, metadata

#: What keeps a request id from being done twice.
REQUEST_KEY = "request_pkey"

request = Table(
    "request",
    metadata,
    # Of the session that it is about; of one that is about none, the key of the empty name.
    Column("session_key", Uuid, nullable=False),
    # The client's own name for it.
    Column("request_id", Text, nullable=False),
    Column("tenant_id", Uuid, nullable=False),
    Column("method", Text, nullable=False),
    # SHA-256 of what was asked for.
    Column("digest", LargeBinary, nullable=False),
    # Of an append: where its chunks are.
    Column("first_position", BigInteger),
    Column("last_position", BigInteger),
    # Of any other method: the serialized response of the first call.
    Column("response", LargeBinary),
    created(),
    # When it may be removed; NULL: not before the session is.
    Column("expires_at", DateTime(timezone=True)),
    PrimaryKeyConstraint("session_key", "request_id", name=REQUEST_KEY),
    # Both in one transaction: no request is done whose chunks are not there.
    ForeignKeyConstraint(
        ["session_key", "last_position"],
        ["chunk.session_key", "chunk.position"],
        name="request_chunk_fkey",
    ),
    CheckConstraint("octet_length(digest) = 32", name="request_digest"),
    # For removals: what refers to a chunk that goes.
    Index(
        "request_by_chunk",
        "session_key",
        "last_position",
        postgresql_where=text("last_position IS NOT NULL"),
    ),
    CheckConstraint(
        "method <> 'Append' OR (first_position >= 1 AND last_position >= first_position) IS TRUE",
        name="request_positions",
    ),
    Index("request_expiry", "expires_at", postgresql_where=text("expires_at IS NOT NULL")),
)
