"""Deletes sessions, memories and answers at once; workers remove their rows.

A small session's rows are removed before the call returns, so that its name is free again; of a
large one workers remove them, batch by batch.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

from service.domain.access.audit import AuditAction, AuditEntry
from service.domain.access.identity import LOCAL, current_principal
from service.domain.log.erasures import ErasureKind, ErasureRequest
from service.domain.values.tenancy import memory_id, session_key
from service.domain.values.work_items import WorkItem, WorkKind
from service.settings.config import Config
from service.usecases.answers.ask import answer_not_found, occasion
from service.usecases.log.idempotency import store_result, tried_again
from service.usecases.log.lookup import missing, session_not_found
from service.usecases.log.wake_ups import WakeUps
from service.usecases.operations.erasure_journal import ErasureJournal
from service.usecases.operations.outside import left_outside
from service.usecases.operations.redacting import remove_redacted
from storage.access import audit
from storage.engine.database import Database, Transaction
from storage.engine.tasks import begin_part
from storage.log import deleting, erasures
from storage.log.deleting import Removal
from storage.operations import copies, derived, imports
from storage.operations.copies import ImportedCopy
from storage.operations.derived import RedactionRemoval
from storage.operations.exports import exports_of

#: Rows of one transaction of a removal.
BATCH_ROWS = 2000
#: Transactions that a call adds to its own before it leaves the rest to workers.
OWN_BATCHES = 2
#: Imports of a deleted session that are listed at once.
PAGE_IMPORTS = 100


class Deleter:
    """Deletes what clients name, in one server process."""

    def __init__(
        self, database: Database, wake_ups: WakeUps, journal: ErasureJournal | None = None
    ) -> None:
        self._database = database
        self._wake_ups = wake_ups
        self._journal = journal or ErasureJournal(database, None)

    async def delete_session(
        self,
        tenant_id: UUID,
        session: str,
        *,
        allow_missing: bool,
        reason: str = "",
        include_imports: bool = False,
    ) -> None:
        """Deletes a session, or its unfinished import. Raises NotFound unless `allow_missing`.

        With `include_imports` those of its exports are deleted before it.
        """
        key, request = session_key(tenant_id, session), _request(reason)
        if include_imports:
            await self._delete_imports(tenant_id, key, request)

        async def hide(tx: Transaction) -> bool:
            found = await _hide(tx, key, session, request)
            if not found and not allow_missing:
                raise session_not_found(session)
            await store_result(tx, None)
            return found

        if await tried_again(self._database, tenant_id, hide, name="delete-session"):
            await self._journal.keep(tenant_id)
            await self.remove(tenant_id, key, key)

    async def _delete_imports(self, tenant_id: UUID, key: UUID, request: ErasureRequest) -> None:
        """Deletes what was imported from a session's exports, each in a transaction of its own.

        The session is there until they are gone, so that a call that failed is repeated.
        """
        while imported := await self._imported(tenant_id, key):
            for copy in imported:
                async with self._database.transaction(tenant_id, name="delete-session") as tx:
                    await deleting.lock_session(tx, copy.session_key)
                    # Another session may have its name by now.
                    if not await copies.is_there(tx, copy):
                        continue
                    await _hide(tx, copy.session_key, copy.name, request)
                await self._journal.keep(tenant_id)
                await self.remove(tenant_id, copy.session_key, copy.session_key)

    async def _imported(self, tenant_id: UUID, key: UUID) -> Sequence[ImportedCopy]:
        async with self._database.transaction(tenant_id, name="delete-session") as tx:
            exports = [one.export_id for one in await exports_of(tx, key)]
            # For the names of unfinished ones, which the audit log has.
            await tx.execute(deleting.REMOVING, prepare=None)
            found, _ = await copies.find(tx, exports, PAGE_IMPORTS)
        return found

    async def delete_memory(
        self,
        tenant_id: UUID,
        session: str,
        name: str,
        *,
        allow_missing: bool,
        reason: str = "",
    ) -> None:
        """Deletes a memory. Raises NotFound unless `allow_missing`."""
        key, request = session_key(tenant_id, session), _request(reason)
        identity = memory_id(key, name)

        async def hide(tx: Transaction) -> bool:
            listed = replace(request, detail=await left_outside(tx, key))
            found = await deleting.delete_memory(tx, key, identity, listed)
            if not found and not allow_missing:
                raise await missing(tx, session, name)
            if found:
                deletion = AuditEntry(
                    action=AuditAction.MEMORY_DELETE, session=session, memory=name
                )
                await audit.record(tx, deletion)
            await store_result(tx, None)
            return found

        if await tried_again(self._database, tenant_id, hide, name="delete-memory"):
            await self._journal.keep(tenant_id)
            await self.remove(tenant_id, key, identity)

    async def delete_answer(
        self, tenant_id: UUID, session: str, answer_id: UUID, *, allow_missing: bool
    ) -> None:
        """Deletes an answer. Raises NotFound unless `allow_missing`."""
        key = session_key(tenant_id, session)
        async with self._database.transaction(tenant_id, name="delete-answer") as tx:
            found = await deleting.delete_answer(tx, key, answer_id, occasion(answer_id))
            if not found and not allow_missing:
                raise await answer_not_found(tx, session, answer_id)
            if found:
                deletion = AuditEntry(
                    action=AuditAction.ANSWER_DELETE, session=session, target=str(answer_id)
                )
                await audit.record(tx, deletion)
            await store_result(tx, None)

    async def remove(self, tenant_id: UUID, key: UUID, item_id: UUID) -> None:
        """Removes rows of what was deleted: all, or the first ones, and then wakes a worker."""
        removal: Removal | None = Removal(session_key=key, item_id=item_id)
        for _ in range(OWN_BATCHES):
            if removal is not None and not removal.is_done:
                removal = await _remove_some(self._database, tenant_id, removal)
        if removal is None or not removal.is_done:
            item = WorkItem(
                kind=WorkKind.REMOVAL, tenant_id=tenant_id, session_key=key, item_id=item_id
            )
            self._wake_ups.add([item])


async def _hide(tx: Transaction, key: UUID, session: str, request: ErasureRequest) -> bool:
    """Hides a session, or ends its unfinished import, and records that; False without one."""
    listed = replace(request, detail=await left_outside(tx, key))
    found = await deleting.delete_session(tx, key, listed)
    if not found and await imports.abandon(tx, key):
        found = True
        await erasures.record(tx, ErasureKind.SESSION, request, session=key, item=key)
    if found:
        await audit.record(tx, AuditEntry(action=AuditAction.SESSION_DELETE, session=session))
    return found


def _request(reason: str) -> ErasureRequest:
    return ErasureRequest(principal=current_principal(LOCAL), reason=reason)


async def _remove_some(database: Database, tenant_id: UUID, removal: Removal) -> Removal | None:
    async with database.transaction(tenant_id, name="removal") as tx:
        return await deleting.remove_some(tx, removal, BATCH_ROWS)


class Remover:
    """Removes rows of what was deleted, in one worker process."""

    def __init__(self, database: Database, config: Config) -> None:
        self._database = database
        self._drain_seconds = config.drain_seconds

    async def remove(self, item: WorkItem, *, stop: asyncio.Event | None = None) -> float | None:
        """Removes batches until nothing is left; returns None then.

        Returns 0 when its turn ends, or `stop` is set, before that. Raises StorageError.
        """
        until = asyncio.get_running_loop().time() + self._drain_seconds
        remove_some, removal = await self._begun(item)
        while removal is not None and not removal.is_done:
            if asyncio.get_running_loop().time() > until or (stop is not None and stop.is_set()):
                return 0.0
            begin_part(stop)
            removal = await remove_some(self._database, item.tenant_id, removal)
        return None

    async def _begun(self, item: WorkItem) -> tuple[Any, Removal | RedactionRemoval | None]:
        """Returns how a removal goes on: of redacted chunks, or of what was deleted."""
        async with self._database.transaction(item.tenant_id, name="removal") as tx:
            is_redaction = await derived.is_open(tx, item.session_key, item.item_id)
        if is_redaction:
            redaction = RedactionRemoval(session_key=item.session_key, redaction_id=item.item_id)
            return remove_redacted, redaction
        return _remove_some, Removal(session_key=item.session_key, item_id=item.item_id)
