"""Sessions: creating, reading, listing."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import bindparam, select, text
from sqlalchemy.dialects.postgresql import insert

from storage.database import DirectTransaction, Transaction
from storage.ready import Ready
from storage.tables import session


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredSession:
    """A session's row."""

    session_key: UUID
    name: str
    #: Position of the newest chunk; 0 when there is none.
    head: int
    #: Content and metadata of all chunks, in bytes; of old ones without metadata.
    content_bytes: int
    #: Rises when the name is used again after erasure.
    incarnation: int
    #: A configuration of PostgreSQL's full-text search.
    language: str
    created_at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class DeploymentKeys:
    """Secrets that all processes on one database share."""

    #: Signs consistency and page tokens.
    token: bytes
    #: Derives the delimiters of data in prompts.
    marker: bytes


_COLUMNS = (
    session.c.session_key,
    session.c.name,
    session.c.head,
    session.c.content_bytes,
    session.c.incarnation,
    session.c.language,
    session.c.created_at,
)


def _stored(row: Sequence[Any]) -> StoredSession:
    return StoredSession(**dict(zip(StoredSession.__dataclass_fields__, row, strict=True)))


async def has_language(tx: Transaction, language: str) -> bool:
    """Whether texts can be searched in the language, by the name of its configuration."""
    statement = text(
        "SELECT EXISTS (SELECT FROM pg_ts_config"
        " WHERE cfgname = :language AND pg_ts_config_is_visible(oid))"
    )
    found = await tx.connection.execute(statement, {"language": language})
    return bool(found.scalar_one())


async def create(
    tx: Transaction, session_key: UUID, name: str, language: str = "english"
) -> StoredSession | None:
    """Makes a session; None when it exists. `language` is one that the database has."""
    statement = (
        insert(session)
        .values(session_key=session_key, tenant_id=tx.tenant_id, name=name, language=language)
        .on_conflict_do_nothing(index_elements=["session_key"])
        .returning(*_COLUMNS)
    )
    row = (await tx.connection.execute(statement)).one_or_none()
    return None if row is None else _stored(row)


_ONE = select(*_COLUMNS).where(session.c.session_key == bindparam("session"))
_GET = Ready(_ONE)
_GET_SHARED = Ready(_ONE.with_for_update(read=True))
_GET_ALONE = Ready(_ONE.with_for_update(key_share=True))


async def get(tx: Transaction, session_key: UUID) -> StoredSession | None:
    """Reads a session; None when there is none."""
    return await _read(tx, _GET, session_key)


async def _read(tx: Transaction, how: Ready, session_key: UUID) -> StoredSession | None:
    rows = await tx.rows(how, {"session": session_key})
    return _stored(rows[0]) if rows else None


async def existing(tx: DirectTransaction, keys: Sequence[UUID]) -> Collection[UUID]:
    """Returns those of these sessions that exist at this moment, in one round trip."""
    query = "SELECT session_key FROM session WHERE session_key = ANY(%s)"
    return [key for (key,) in await tx.read(query, (list(keys),))]


_HEAD = Ready(
    select(session.c.head)
    .where(session.c.session_key == bindparam("session"))
    .with_for_update(read=True)
)


async def lock_head(tx: Transaction, session_key: UUID) -> StoredSession | None:
    """As `get`, and keeps the head where it is until the transaction ends."""
    return await _read(tx, _GET_SHARED, session_key)


async def locked_head(tx: Transaction, session_key: UUID) -> int:
    """The head of a session that exists, kept where it is until the transaction ends."""
    found = await tx.rows(_HEAD, {"session": session_key})
    assert found, "a memory's foreign key holds its session"
    head: int = found[0][0]
    return head


async def lock_alone(tx: Transaction, session_key: UUID) -> StoredSession | None:
    """As `lock_head`, and nobody else has the session locked meanwhile."""
    return await _read(tx, _GET_ALONE, session_key)


async def list_after(tx: Transaction, name: str, limit: int) -> Sequence[StoredSession]:
    """Up to `limit` sessions in order of name, behind `name`."""
    statement = (
        select(*_COLUMNS)
        # The last is so of all, and what the index asks for.
        .where(session.c.tenant_id == tx.tenant_id, session.c.name > name, text("name > ''"))
        .order_by(session.c.name)
        .limit(limit)
    )
    return [_stored(row) for row in await tx.connection.execute(statement)]
