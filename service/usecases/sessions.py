"""Creating, reading and listing sessions, and reading their logs."""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from service.domain.chunks import LoggedChunk
from service.domain.errors import AlreadyExists, InvalidInput
from service.domain.reasons import Reason
from service.domain.tenancy import session_key
from service.usecases.lookup import session_not_found
from storage import log_pages, sessions
from storage.database import Database
from storage.sessions import StoredSession


@dataclass(frozen=True, kw_only=True, slots=True)
class ChunkPage:
    """Chunks in order of position."""

    chunks: Sequence[LoggedChunk]
    #: The session's head when they were read; no chunk is behind it.
    head: int


async def create(database: Database, tenant_id: UUID, name: str, *, language: str) -> StoredSession:
    """Makes a session that is searched in `language`. Raises AlreadyExists, InvalidInput."""
    async with database.transaction(tenant_id, name="sessions") as tx:
        if not await sessions.has_language(tx, language):
            raise InvalidInput(
                Reason.LANGUAGE_UNKNOWN,
                f"the database cannot search texts in the language {language!r}; palimpsest"
                " has those of PostgreSQL's text search: english, german, simple and others",
                {"language": language},
                field="language",
            )
        made = await sessions.create(tx, session_key(tenant_id, name), name, language)
    if made is None:
        raise AlreadyExists(
            Reason.SESSION_EXISTS, f"there is a session {name!r} already", {"session": name}
        )
    return made


async def get(database: Database, tenant_id: UUID, name: str) -> StoredSession:
    """Reads a session. Raises NotFound."""
    async with database.transaction(tenant_id, name="sessions") as tx:
        stored = await sessions.get(tx, session_key(tenant_id, name))
    if stored is None:
        raise session_not_found(name)
    return stored


async def list_after(
    database: Database, tenant_id: UUID, name: str, limit: int
) -> Sequence[StoredSession]:
    """Up to `limit` sessions in order of name, behind `name`."""
    async with database.transaction(tenant_id, name="sessions") as tx:
        return await sessions.list_after(tx, name, limit)


async def read_chunks(
    database: Database,
    tenant_id: UUID,
    name: str,
    *,
    from_position: int,
    limit: int,
    max_bytes: int,
) -> ChunkPage:
    """Returns chunks of the session's log from a position on. Raises NotFound.

    At most `limit`, and so many as have `max_bytes` together with their metadata, but at
    least one where there is one.
    """
    key = session_key(tenant_id, name)
    after = max(from_position, 1) - 1
    async with database.transaction(tenant_id, name="sessions") as tx:
        stored = await sessions.get(tx, key)
        if stored is None:
            raise session_not_found(name)
        # What came behind the head that is told is of a later page: both are not read at
        # one moment.
        upto = min(after + limit, stored.head)
        found = await log_pages.read_pages(tx, key, [(after, upto)], max_bytes)
    return ChunkPage(chunks=found.get(after, ()), head=stored.head)
