"""Creates, reads and lists sessions."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, bindparam, exists, func, select, text, update
from sqlalchemy.dialects.postgresql import insert

from service.domain.operations.retention import NO_POLICY, Retention
from service.domain.values.json_values import Json, etag_of
from service.domain.values.memory_specs import DefaultMemory
from storage.engine.database import Transaction, first
from storage.engine.ready import Ready
from storage.log.deleting import REMOVING
from storage.tables import removal, session


@dataclass(frozen=True, kw_only=True, slots=True)
class SessionOrigin:
    """Where an imported session is from."""

    #: Its id where it was exported.
    session: str
    export_id: str
    exported_at: datetime
    imported_at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredSession:
    """A session's row."""

    session_key: UUID
    name: str
    #: Position of the newest chunk; 0 when there is none.
    head: int
    #: Bytes of content and metadata of all chunks; of old ones without metadata.
    content_bytes: int
    #: Rises when the name is used again after erasure.
    incarnation: int
    #: A configuration of PostgreSQL's full-text search.
    language: str
    #: The client's own keys and values.
    metadata: Mapping[str, str]
    created_at: datetime
    #: What its first append makes; NONE as well once a memory was deleted before that.
    default_memory: DefaultMemory
    #: What differs from the tenant's.
    retention: Retention
    #: None: it was not imported.
    imported_from: SessionOrigin | None

    @property
    def etag(self) -> str:
        """A tag that changes with each update."""
        own: dict[str, Json] = {**self.retention.stored()}
        # As before where there is none.
        return etag_of(self.incarnation, dict(self.metadata), *([own] if own else []))


_COLUMNS = tuple(session.c[name] for name in StoredSession.__dataclass_fields__)


def _stored(row: Sequence[Any]) -> StoredSession:
    *others, default_memory, retention, origin = row
    own = (DefaultMemory(default_memory), Retention.of(retention))
    fields = (*others, *own, None if origin is None else _origin(origin))
    return StoredSession(**dict(zip(StoredSession.__dataclass_fields__, fields, strict=True)))


def _origin(stored: Mapping[str, str]) -> SessionOrigin:
    times = {name: datetime.fromisoformat(stored[name]) for name in ("exported_at", "imported_at")}
    return SessionOrigin(session=stored["session"], export_id=stored["export_id"], **times)


async def has_language(tx: Transaction, language: str) -> bool:
    """Returns whether the database has a text search configuration of this name."""
    statement = text(
        "SELECT EXISTS (SELECT FROM pg_ts_config"
        " WHERE cfgname = :language AND pg_ts_config_is_visible(oid))"
    )
    found = await tx.fetch(statement, {"language": language})
    return bool(found[0][0])


async def create(
    tx: Transaction,
    session_key: UUID,
    name: str,
    language: str = "english",
    metadata: Mapping[str, str] | None = None,
    default_memory: DefaultMemory = DefaultMemory.NONE,
    retention: Retention = NO_POLICY,
) -> StoredSession | None:
    """Creates a session; None when it exists, or rows of one of its name are being removed.

    The database has the `language`. The name of a deleted session begins anew, in the incarnation
    of its tombstone.
    """
    chosen = {
        "language": language,
        "metadata": dict(metadata or {}),
        "default_memory": default_memory.value,
        "retention": retention.stored(),
    }
    statement = (
        insert(session)
        .values(session_key=session_key, tenant_id=tx.tenant_id, name=name, **chosen)
        .on_conflict_do_nothing(index_elements=["session_key", "tenant_id"])
        .returning(*_COLUMNS)
    )
    row = first(await tx.fetch(statement))
    if row is None:
        await tx.execute(REMOVING, prepare=None)
        anew = (
            update(session)
            .where(
                session.c.session_key == session_key,
                session.c.deleted_at.is_not(None),
                ~exists().where(removal.c.session_key == session_key),
            )
            .values(deleted_at=None, created_at=func.now(), **chosen)
            .returning(*_COLUMNS)
        )
        row = first(await tx.fetch(anew))
    return None if row is None else _stored(row)


async def set_fields(tx: Transaction, session_key: UUID, **values: Any) -> StoredSession:
    """Replaces columns of a session that the transaction has from `lock_alone`."""
    statement = (
        update(session)
        .where(session.c.session_key == session_key)
        .values(**values)
        .returning(*_COLUMNS)
    )
    return _stored((await tx.fetch(statement))[0])


_ONE = select(*_COLUMNS).where(session.c.session_key == bindparam("session"))
_GET = Ready(_ONE)
_GET_SHARED = Ready(_ONE.with_for_update(read=True))
_GET_ALONE = Ready(_ONE.with_for_update(key_share=True))
_GET_KEPT = Ready(_ONE.with_for_update(read=True, key_share=True))


async def get(tx: Transaction, session_key: UUID) -> StoredSession | None:
    """Reads a session; None when there is none."""
    return await _read(tx, _GET, session_key)


async def keep(tx: Transaction, session_key: UUID) -> StoredSession | None:
    """Does as `get`, and keeps the session from being deleted before the transaction ends.

    For transactions that add rows to it. Appends continue meanwhile.
    """
    return await _read(tx, _GET_KEPT, session_key)


_LIVES = """
SELECT s.incarnation, (SELECT r.epoch FROM revision r
    WHERE r.session_key = s.session_key AND r.memory_id = %(memory)s AND r.revision = 0)
FROM session s WHERE s.session_key = %(session)s
"""


async def lives(tx: Transaction, session_key: UUID, memory_id: UUID) -> tuple[int, int]:
    """Returns the incarnation of a session, and the epoch at which one of its memories began.

    Each is greater than that of an earlier one of the same name; 0 for what does not exist.
    """
    rows = await tx.fetch(_LIVES, {"session": session_key, "memory": memory_id})
    incarnation, epoch = rows[0] if rows else (0, 0)
    return incarnation, epoch or 0


async def _read(tx: Transaction, how: Ready, session_key: UUID) -> StoredSession | None:
    rows = await tx.fetch(how, {"session": session_key})
    return _stored(rows[0]) if rows else None


async def existing(tx: Transaction, keys: Sequence[UUID]) -> Collection[UUID]:
    """Returns which of these sessions exist now, in one round trip."""
    query = "SELECT session_key FROM session WHERE session_key = ANY(%s)"
    return [key for (key,) in await tx.fetch(query, (list(keys),))]


async def lock_head(tx: Transaction, session_key: UUID) -> StoredSession | None:
    """Does as `get`, and keeps the head where it is until the transaction ends."""
    return await _read(tx, _GET_SHARED, session_key)


async def locked_head(tx: Transaction, session_key: UUID) -> int | None:
    """Returns the head, and keeps it where it is until the transaction ends; None: deleted."""
    found = await lock_head(tx, session_key)
    return None if found is None else found.head


async def lock_alone(tx: Transaction, session_key: UUID) -> StoredSession | None:
    """Does as `lock_head`, with a lock that no other transaction shares."""
    return await _read(tx, _GET_ALONE, session_key)


async def lock_in_order(tx: Transaction, *which: ColumnElement[bool]) -> None:
    """Locks sessions in the order in which an append or a flush locks several of them.

    For transactions that change several memories or sessions, before they lock any of these.
    """
    statement = (
        select(session.c.session_key)
        .where(*which)
        .order_by(session.c.session_key)
        .with_for_update(key_share=True)
    )
    await tx.execute(statement)


async def list_after(
    tx: Transaction, name: str, limit: int, *, prefix: str = ""
) -> Sequence[StoredSession]:
    """Returns up to `limit` sessions after `name`, in the order of the bytes of their names.

    Only those whose names begin with `prefix`.
    """
    by_bytes = session.c.name.collate("C")
    statement = (
        select(*_COLUMNS)
        # The last is true of all, and the condition of the index.
        .where(session.c.tenant_id == tx.tenant_id, by_bytes > name, text("name > ''"))
        .order_by(by_bytes)
        .limit(limit)
    )
    if prefix:
        # The first bound lets the index begin there.
        begins = func.starts_with(session.c.name, prefix)
        statement = statement.where(by_bytes >= prefix, begins)
    return [_stored(row) for row in await tx.fetch(statement)]
