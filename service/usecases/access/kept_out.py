"""Lists the texts that a session keeps out, and lets them in again."""

from collections.abc import Sequence
from uuid import UUID

from service.domain.access.audit import AuditAction, AuditEntry, Detail
from service.domain.log.keeping_out import KeptOutText
from service.domain.values.errors import NotFound
from service.domain.values.reasons import Reason
from service.domain.values.tenancy import session_key
from service.usecases.log.idempotency import store_result
from service.usecases.log.lookup import session_not_found
from storage.access import audit
from storage.engine.database import Database
from storage.log import deleting, keeping_out, sessions


class KeptOutTexts:
    """What administrators do with the texts that redactions keep out, in one server process."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def page(
        self, tenant_id: UUID, session: str, after: str, limit: int
    ) -> Sequence[KeptOutText]:
        """Returns up to `limit` texts after one, by their ids. Raises NotFound."""
        key = session_key(tenant_id, session)
        async with self._database.transaction(tenant_id, name="kept-out") as tx:
            if await sessions.get(tx, key) is None:
                raise session_not_found(session)
            return await keeping_out.list_after(tx, key, after, limit)

    async def allow(self, tenant_id: UUID, session: str, id: str) -> KeptOutText:
        """Lets a text in from now on; what was kept out before stays a tombstone.

        Raises NotFound.
        """
        key = session_key(tenant_id, session)
        async with self._database.transaction(tenant_id, name="kept-out") as tx:
            # Appends compare what they write while they have the session.
            if not await deleting.lock_session(tx, key):
                raise session_not_found(session)
            found = await keeping_out.find(tx, key, id)
            if found is None:
                raise NotFound(
                    Reason.ERASURE_NOT_FOUND,
                    f"session {session!r} keeps out no text {id!r}: ListKeptOutTexts has all",
                    {"erasure": id},
                )
            await deleting.allow(tx, key)
            await keeping_out.remove(tx, key, id)
            await deleting.forbid(tx, key)
            details: dict[str, Detail] = {"words": found.words, "erasure": found.erasure_id}
            entry = AuditEntry(
                action=AuditAction.TEXT_ALLOW, session=session, target=id, details=details
            )
            await audit.record(tx, entry)
            return await store_result(tx, found)
