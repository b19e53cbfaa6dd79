"""Creates, reads and lists sessions, and reads their logs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from uuid import UUID

from service.domain.log.chunks import LoggedChunk
from service.domain.log.redactions import Redaction
from service.domain.operations.retention import NO_POLICY, Retention
from service.domain.values.errors import AlreadyExists, Conflict, InvalidInput
from service.domain.values.memory_specs import DefaultMemory
from service.domain.values.reasons import Reason
from service.domain.values.tenancy import session_key
from service.usecases.log.chunk_filter import ChunkFilter
from service.usecases.log.idempotency import store_result
from service.usecases.log.lookup import being_deleted, keep_tenant, session_not_found
from service.usecases.log.room import Room, unlimited
from storage.engine.database import Database
from storage.log import deleting, redacting, retention_turns, sessions
from storage.log import pages as log_pages
from storage.log.sessions import StoredSession


@dataclass(frozen=True, kw_only=True, slots=True)
class ChunkPage:
    """Chunks in order of position."""

    chunks: Sequence[LoggedChunk]
    #: The session's head when they were read; no chunk is after it.
    head: int
    #: Where the next page begins; 0 on the last.
    next_position: int
    #: The redactions of those that are tombstones, by their ids.
    redactions: Mapping[UUID, Redaction] = field(default_factory=dict)


async def create(
    database: Database,
    tenant_id: UUID,
    name: str,
    *,
    language: str,
    metadata: Mapping[str, str] | None = None,
    default_memory: DefaultMemory = DefaultMemory.NONE,
    retention: Retention = NO_POLICY,
    room: Room = unlimited,
) -> StoredSession:
    """Creates a session that is searched in `language`. Raises AlreadyExists, Conflict,
    InvalidInput, Exhausted (quota), Unauthenticated (its tenant was deleted)."""
    async with database.transaction(tenant_id, name="sessions") as tx:
        if not await sessions.has_language(tx, language):
            raise InvalidInput(
                Reason.LANGUAGE_UNKNOWN,
                f"the database cannot search texts in the language {language!r}; palimpsest"
                " has those of PostgreSQL's text search: english, german, simple and others",
                {"language": language},
                field="session.language",
            )
        key = session_key(tenant_id, name)
        await keep_tenant(tx)
        made = await sessions.create(tx, key, name, language, metadata, default_memory, retention)
        is_going = made is None and await deleting.is_being_removed(tx, key, key)
        if is_going:
            raise being_deleted("session", name)
        if made is None:
            raise AlreadyExists(
                Reason.SESSION_EXISTS, f"there is a session {name!r} already", {"session": name}
            )
        await room(tx)
        if retention.stored():
            await retention_turns.begin(tx)
        return await store_result(tx, made)


async def get(database: Database, tenant_id: UUID, name: str) -> StoredSession:
    """Reads a session. Raises NotFound."""
    async with database.transaction(tenant_id, name="sessions") as tx:
        stored = await sessions.get(tx, session_key(tenant_id, name))
    if stored is None:
        raise session_not_found(name)
    return stored


async def update(
    database: Database,
    tenant_id: UUID,
    name: str,
    *,
    metadata: Mapping[str, str] | None,
    retention: Retention | None,
    etag: str,
) -> StoredSession:
    """Replaces what is given; with an `etag` only of a session that is as it was then.

    Raises NotFound, Conflict.
    """
    key = session_key(tenant_id, name)
    async with database.transaction(tenant_id, name="sessions") as tx:
        stored = await sessions.lock_alone(tx, key)
        if stored is None:
            raise session_not_found(name)
        if etag and etag != stored.etag:
            raise Conflict(
                Reason.ETAG_MISMATCH,
                f"session {name!r} was updated since it was read: read it again",
                {"current": stored.etag},
            )
        changed: dict[str, object] = {}
        if metadata is not None and dict(stored.metadata) != dict(metadata):
            changed["metadata"] = dict(metadata)
        if retention is not None and stored.retention != retention:
            changed["retention"] = retention.stored()
            await retention_turns.begin(tx)
        if changed:
            stored = await sessions.set_fields(tx, key, **changed)
        return await store_result(tx, stored)


async def list_after(
    database: Database, tenant_id: UUID, name: str, limit: int, *, prefix: str = ""
) -> Sequence[StoredSession]:
    """Returns up to `limit` sessions in order of name, after `name`, that begin with `prefix`."""
    async with database.transaction(tenant_id, name="sessions") as tx:
        return await sessions.list_after(tx, name, limit, prefix=prefix)


async def read_chunks(
    database: Database,
    tenant_id: UUID,
    name: str,
    *,
    from_position: int,
    limit: int,
    max_bytes: int,
    wanted: ChunkFilter | None = None,
) -> ChunkPage:
    """Returns the wanted chunks of a session's log from a position on.

    At most `limit`, and so many as have `max_bytes` together with their metadata, but at
    least one where there is one. A page compares a limited number of chunks: it may return none
    and not be the last. Raises NotFound, InvalidInput.
    """
    wanted = wanted or ChunkFilter()
    wanted.check()
    key = session_key(tenant_id, name)
    async with database.transaction(tenant_id, name="sessions") as tx:
        stored = await sessions.get(tx, key)
        if stored is None:
            raise session_not_found(name)
        # Chunks after the head that is reported are of a later page: head and chunks are not
        # read at one moment.
        within = wanted.range(stored.head)
        within = replace(within, from_position=max(within.from_position, from_position))
        if within.conditions():
            found, following = await log_pages.read_wanted(
                tx, key, within, limit, max_bytes, as_stored=True
            )
        else:
            after = within.from_position - 1
            upto = min(after + limit, within.to_position)
            pages = await log_pages.read_pages(tx, key, [(after, upto)], max_bytes)
            found = pages.get(after, ())
            last = found[-1].position if found else 0
            following = last + 1 if 0 < last < within.to_position else 0
        ids = {one.redaction_id for one in found if one.redaction_id is not None}
        redactions = await redacting.read_redactions(tx, key, list(ids)) if ids else {}
    return ChunkPage(chunks=found, head=stored.head, next_position=following, redactions=redactions)
