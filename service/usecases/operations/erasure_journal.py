"""Keeps the erasure journal, and repeats from it what a restored database has missed.

A backup has what was erased after it. The journal is outside of the database, so a restore does not
take it back; at its start a process compares both before it serves anything.
"""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from uuid import UUID

import structlog

from service.domain.log.erasures import ErasureKind, ErasureRequest
from service.domain.log.journal_lines import JournalBroken, JournalEntry, JournalFull
from service.domain.log.redactions import keyed_digest
from service.domain.values.errors import Unavailable
from service.domain.values.reasons import Reason
from service.usecases.operations.chunk_redaction import redact_chunks
from service.usecases.operations.journal_file import JournalFile
from service.usecases.operations.tenant_removal import record_deletion
from storage.access import tenants
from storage.engine.database import Database, Transaction
from storage.engine.errors import Full, StorageError
from storage.log import deleting, erasures
from storage.operations import tenant_removal

_log = structlog.get_logger("palimpsest")

#: Entries that are compared, or appended, at once; a journal's longest have 1 MiB.
BATCH = 100
#: How often a server appends what could not be appended at once.
RETRY_SECONDS = 10.0


@dataclass(frozen=True, kw_only=True, slots=True)
class JournalComparison:
    """What a comparison of journal and database did."""

    #: Erasures that the database had missed, and that hide their targets again now.
    repeated: int = 0
    #: Erasures that were missing in the journal.
    appended: int = 0


class ErasureJournal:
    """The journal of a deployment; without a file there is none, and nothing is kept."""

    def __init__(
        self, database: Database, file: JournalFile | None, token_key: bytes = b""
    ) -> None:
        """`token_key`: the deployment's, which makes the digests of redacted chunks."""
        self._database = database
        self._token_key = token_key
        self._file = file
        self._lock = asyncio.Lock()

    async def keep(self, tenant_id: UUID) -> None:
        """Appends what the tenant has erased; it is on disk when this returns.

        Raises Unavailable when the file cannot be written: a server tries again later.
        """
        try:
            await self._append(tenant_id)
        except JournalBroken as error:
            _log.error("cannot write the erasure journal", cause=str(error))
            raise Unavailable(
                Reason.ERASURE_JOURNAL_UNAVAILABLE,
                "it is deleted, and hidden from all calls; but the erasure journal, by which a"
                " restored backup deletes it again, cannot be written now. The server tries again,"
                " and gives no receipt before that: report it to the operator",
            ) from error

    async def run(self) -> None:
        """Appends what could not be appended at once, until it is cancelled."""
        while self._file is not None:
            await asyncio.sleep(RETRY_SECONDS)
            try:
                await self._append_all()
            except JournalBroken as error:
                _log.error("cannot write the erasure journal", cause=str(error))
            except StorageError as error:
                # Nothing new can be erased meanwhile; that the database is away is said elsewhere.
                _log.debug("cannot read erasures for the journal", cause=str(error))

    async def compare(self) -> JournalComparison:
        """Repeats what the database has missed, and appends what the journal has missed.

        Raises JournalBroken, StorageError; not when only the appending finds a disk full.
        """
        if self._file is None:
            return JournalComparison()
        if not self._file.exists() and await self._was_kept():
            raise JournalBroken(
                "is missing, though erasures were written there: restore it, or make an empty"
                " file, which takes up all erasures that the database knows"
            )
        repeated, read = 0, 0
        entries = self._file.read()
        while some := await asyncio.to_thread(_some, entries):
            read += len(some)
            for entry in await self._missed(some):
                repeated += await self._repeat(entry)
        return JournalComparison(repeated=repeated, appended=await self._append_if_room(read == 0))

    async def _append_if_room(self, anew: bool) -> int:
        """Appends what the journal lacks; nothing when a disk is full.

        A restored database lacks nothing then: servers may start, and append it later.
        """
        try:
            return await self._append_all(anew=anew)
        except (JournalFull, Full) as error:
            _log.error("no room for the erasure journal; it is written later", cause=str(error))
            return 0

    async def _was_kept(self) -> bool:
        async with self._database.sweeping(name="erasure-journal") as tx:
            return await erasures.was_journalled(tx)

    async def _missed(self, entries: Sequence[JournalEntry]) -> Sequence[JournalEntry]:
        async with self._database.sweeping(name="erasure-journal") as tx:
            ids = [(one.tenant_id, one.erasure_id) for one in entries]
            known = await erasures.known(tx, ids)
            here = await erasures.known_tenants(tx, {one.tenant_id for one in entries})
        # There is nothing to erase of a tenant that the backup did not have.
        return [
            one
            for one in entries
            if (one.tenant_id, one.erasure_id) not in known and one.tenant_id in here
        ]

    async def _repeat(self, entry: JournalEntry) -> bool:
        """Repeats an erasure; returns whether its target was there."""
        request = ErasureRequest(
            principal=entry.principal,
            erasure_id=entry.erasure_id,
            requested_at=entry.requested_at,
            detail=entry.detail,
        )
        name = "repeat-erasure"
        async with self._database.transaction(entry.tenant_id, name=name) as tx:
            if await erasures.find(tx, entry.erasure_id) is not None:
                # Another process was first.
                return False
            found = await self._hide(tx, entry, request)
            if not found:
                await erasures.record_absent(tx, entry, request)
            await erasures.mark_journalled(tx, [entry.erasure_id])
        _log.warning(
            "repeated an erasure that the restored database had missed",
            erasure=str(entry.erasure_id),
            kind=entry.kind.value,
            was_there=found,
        )
        return found

    async def _hide(self, tx: Transaction, entry: JournalEntry, request: ErasureRequest) -> bool:
        """Hides the target of an entry again; False when there is nothing to hide."""
        session, item = entry.target_session, entry.target_item
        if entry.kind is ErasureKind.TENANT:
            return await self._delete_tenant(tx, request)
        assert session is not None, "only a tenant has none"
        assert item is not None, "only a tenant has none"
        match entry.kind:
            case ErasureKind.SESSION:
                return await deleting.delete_session(tx, session, request)
            case ErasureKind.MEMORY:
                return await deleting.delete_memory(tx, session, item, request)
            case ErasureKind.CHUNKS:
                return await self._redact(tx, session, item, request)

    async def _delete_tenant(self, tx: Transaction, request: ErasureRequest) -> bool:
        stored = await tenants.lock(tx)
        if stored is None or not await tenant_removal.delete_tenant(tx):
            return False
        erasure_id = await erasures.record(tx, ErasureKind.TENANT, request, session=None, item=None)
        made = await erasures.find(tx, erasure_id)
        assert made is not None, "it was written just now"
        await record_deletion(tx, stored.name, made)
        return True

    async def _redact(
        self, tx: Transaction, session: UUID, redaction: UUID, request: ErasureRequest
    ) -> bool:
        if not await deleting.lock_session(tx, session):
            return False
        keyed = partial(keyed_digest, self._token_key, tx.tenant_id)
        rules = [(words, bytes.fromhex(one)) for words, one in request.detail.get("keep_out", ())]
        # Positions that the backup does not have are lost, and are left out.
        positions = request.detail["positions"]
        done = await redact_chunks(tx, session, redaction, positions, keyed, request, rules)
        return bool(done.positions)

    async def _append_all(self, *, anew: bool = False) -> int:
        """Appends what the journal lacks, of all tenants; `anew`: everything."""
        async with self._database.sweeping(name="erasure-journal") as tx:
            found = await erasures.tenants_to_journal(tx, anew=anew)
        return sum([await self._append(tenant, anew=anew) for tenant in found])

    async def _append(self, tenant_id: UUID, *, anew: bool = False) -> int:
        if self._file is None:
            return 0
        appended, after = 0, None
        async with self._lock:
            while True:
                name = "erasure-journal"
                async with self._database.transaction(tenant_id, name=name) as tx:
                    found = await erasures.to_journal(tx, after, BATCH, anew=anew)
                    if not found:
                        return appended
                    await asyncio.to_thread(self._file.append, found)
                    await erasures.mark_journalled(tx, [one.erasure_id for one in found])
                appended += len(found)
                after = (found[-1].requested_at, found[-1].erasure_id)


def _some(entries: Iterator[JournalEntry]) -> list[JournalEntry]:
    return list(islice(entries, BATCH))
