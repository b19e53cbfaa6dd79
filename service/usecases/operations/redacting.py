"""Redacts chunks: removes their content, and everything that was derived from it.

The first transaction removes what clients can read: the content of the chunks, what memories
have written since they read them, and answers. Memories read the log again from there. What is
left, texts of calls and lists of words, is removed in batches, by this process or by workers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from uuid import UUID, uuid4

from service.domain.access.audit import AuditAction, AuditEntry
from service.domain.log.erasures import BY_SERVICE, ErasureRequest
from service.domain.log.keeping_out import (
    WHOLE,
    Keyed,
    holds_phrase,
    phrase_rule,
    whole_digest,
)
from service.domain.log.matching import contains, normalized
from service.domain.log.redactions import keyed_digest
from service.domain.memories.long_operations import OperationId, OperationKind
from service.domain.values.errors import InvalidInput
from service.domain.values.reasons import Reason
from service.domain.values.tenancy import session_key
from service.domain.values.work_items import WorkItem, WorkKind
from service.llm.offloading import beside
from service.usecases.log.idempotency import store_result, tried_again
from service.usecases.log.lookup import session_not_found
from service.usecases.log.wake_ups import WakeUps
from service.usecases.memories import long_operations
from service.usecases.memories.long_operations import FoundOperation
from service.usecases.operations.chunk_redaction import redact_chunks
from service.usecases.operations.erasure_journal import ErasureJournal
from storage.access import audit
from storage.engine.database import Database, Transaction
from storage.log import deleting, keeping_out, selecting, sessions
from storage.log.selecting import PAGE_CHUNKS, Selection
from storage.log.sessions import StoredSession
from storage.operations import derived
from storage.operations.derived import RedactionRemoval

#: The shortest text that is searched, in normal form, in characters.
MIN_TEXT_CHARACTERS = 3
#: Calls of one transaction of a removal.
BATCH_ROWS = 2000
#: Transactions that a call adds to its own before it leaves the rest to workers.
OWN_BATCHES = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class RedactionRequest:
    """What a client wants to have redacted."""

    session: str
    selection: Selection
    #: The same texts are stored as tombstones when they are appended anew.
    keep_out: bool = False
    #: Only says which chunks it would redact.
    validate_only: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class RedactionResult:
    """Which chunks a redaction removed, or would remove."""

    #: In ascending order; without those that were redacted before.
    positions: Sequence[int]
    #: The removal of what was derived from them; None when there is nothing to do.
    operation: FoundOperation | None = None


class Redactor:
    """Redacts the chunks that clients name, in one server process."""

    def __init__(
        self,
        database: Database,
        wake_ups: WakeUps,
        token_key: bytes,
        *,
        max_chunks: int,
        max_rules: int = 0,
        journal: ErasureJournal | None = None,
    ) -> None:
        """`max_chunks`: what one call may redact; `max_rules`: what a session may keep out."""
        self._database = database
        self._wake_ups = wake_ups
        self._token_key = token_key
        self._max_chunks = max_chunks
        self._max_rules = max_rules
        self._journal = journal or ErasureJournal(database, None)

    async def redact(
        self, tenant_id: UUID, wanted: RedactionRequest, request: ErasureRequest = BY_SERVICE
    ) -> RedactionResult:
        """Redacts chunks. Raises NotFound, InvalidInput (too many, or a text that is too short)."""
        _check(wanted.selection)
        key = session_key(tenant_id, wanted.session)
        # The log may be long, and appends do not wait while it is searched.
        searched, found = await self._found(tenant_id, wanted)
        redaction_id = uuid4()

        async def run(tx: Transaction) -> RedactionResult:
            locked = await deleting.lock_session(tx, key)
            stored = await sessions.get(tx, key) if locked else None
            # Positions of a deleted session mean nothing in a new one of its name.
            if stored is None or stored.incarnation != searched.incarnation:
                raise session_not_found(wanted.session)
            # Another redaction may have been first.
            left = await selecting.with_content(tx, key, found)
            newer = await _select(tx, stored, wanted.selection, searched.head, self._max_chunks)
            positions = self._checked([*left, *newer])
            if wanted.validate_only or not positions:
                return await store_result(tx, RedactionResult(positions=positions))
            return await self._run(tx, wanted, positions, redaction_id, request)

        result = await tried_again(self._database, tenant_id, run, name="redact")
        if result.operation is None:
            return result
        await self._finish(tenant_id, key, redaction_id)
        await self._journal.keep(tenant_id)
        # As it was stored, for a request that comes again.
        return result

    async def _found(
        self, tenant_id: UUID, wanted: RedactionRequest
    ) -> tuple[StoredSession, list[int]]:
        """Searches the log as it is; returns the session, and the chunks that are wanted."""
        key, found, after = session_key(tenant_id, wanted.session), list[int](), 0
        async with self._database.transaction(tenant_id, name="redact") as tx:
            stored = await sessions.get(tx, key)
        if stored is None:
            raise session_not_found(wanted.session)
        while after < stored.head:
            async with self._database.transaction(tenant_id, name="redact") as tx:
                page, after = await selecting.select(
                    tx, key, wanted.selection, after=after, upto=stored.head
                )
            found += await beside(_matching, wanted.selection, page)
            self._checked(found)
        return stored, found

    def _checked(self, positions: Sequence[int]) -> Sequence[int]:
        if len(positions) > self._max_chunks:
            raise InvalidInput(
                Reason.TOO_MANY_CHUNKS,
                f"more than {self._max_chunks} chunks are selected; redact them in several calls,"
                " by positions",
                {"limit": self._max_chunks},
                field="selection",
            )
        return positions

    async def _run(
        self,
        tx: Transaction,
        wanted: RedactionRequest,
        positions: Sequence[int],
        redaction_id: UUID,
        request: ErasureRequest,
    ) -> RedactionResult:
        key = session_key(tx.tenant_id, wanted.session)
        keyed = partial(keyed_digest, self._token_key, tx.tenant_id)
        rules: Sequence[tuple[int, bytes]] = ()
        if wanted.keep_out:
            rules = await self._rules(tx, key, wanted.selection.text, positions, keyed)
        done = await redact_chunks(tx, key, redaction_id, positions, keyed, request, rules)
        self._wake_ups.add(done.woken)
        operation_id = OperationId(session_key=key, operation_id=redaction_id)
        operation = await long_operations.request(tx, operation_id, OperationKind.REDACTION)
        await audit.record(
            tx,
            AuditEntry(
                action=AuditAction.CHUNKS_REDACT,
                session=wanted.session,
                target=str(operation_id),
                details={"chunks": len(done.positions)},
            ),
        )
        return await store_result(
            tx, RedactionResult(positions=done.positions, operation=operation)
        )

    async def _rules(
        self, tx: Transaction, key: UUID, text: str, positions: Sequence[int], keyed: Keyed
    ) -> Sequence[tuple[int, bytes]]:
        """Returns what is to be kept out: the text, and chunks in which it is part of a word.

        Without a text, all of the chunks. Raises InvalidInput.
        """
        phrase = phrase_rule(text, keyed) if text else None
        found: dict[tuple[int, bytes], None] = {} if phrase is None else {phrase: None}
        for start in range(0, len(positions), PAGE_CHUNKS):
            for one in await selecting.read(tx, key, positions[start : start + PAGE_CHUNKS]):
                if phrase is None or not holds_phrase(one.chunk, text):
                    found[WHOLE, whole_digest(one.chunk, keyed)] = None
            known = await keeping_out.count(tx, key)
            if known + len(found) > self._max_rules:
                raise InvalidInput(
                    Reason.TOO_MANY_CHUNKS,
                    f"a session keeps at most {self._max_rules} texts out, and has {known}; redact"
                    " these chunks without keep_out",
                    {"limit": self._max_rules},
                    field="keep_out",
                )
        return list(found)

    async def _finish(self, tenant_id: UUID, key: UUID, redaction_id: UUID) -> None:
        """Removes the rest, or its first batches, and then wakes a worker."""
        removal: RedactionRemoval | None = RedactionRemoval(
            session_key=key, redaction_id=redaction_id
        )
        for _ in range(OWN_BATCHES):
            if removal is None or removal.is_done:
                return
            removal = await remove_redacted(self._database, tenant_id, removal)
        item = WorkItem(
            kind=WorkKind.REMOVAL, tenant_id=tenant_id, session_key=key, item_id=redaction_id
        )
        self._wake_ups.add([item])


def _check(selection: Selection) -> None:
    """Refuses a text that almost every chunk contains, as of blanks. Raises InvalidInput."""
    text = normalized(selection.text, is_exact=selection.is_exact)
    if selection.text and len(text) < MIN_TEXT_CHARACTERS:
        raise InvalidInput(
            Reason.FIELD_INVALID,
            f"text: without blanks at its ends it has {len(text)} characters; write at least"
            f" {MIN_TEXT_CHARACTERS}, or redact by positions",
            field="text",
        )


async def remove_redacted(
    database: Database, tenant_id: UUID, removal: RedactionRemoval
) -> RedactionRemoval | None:
    """Removes a batch of what is left of redacted chunks; None when another worker does so."""
    async with database.transaction(tenant_id, name="removal") as tx:
        return await derived.remove_some(tx, removal, BATCH_ROWS)


async def _select(
    tx: Transaction, stored: StoredSession, selection: Selection, after: int, most: int
) -> list[int]:
    """Returns the wanted chunks after a position, from a session that is locked."""
    key, found = stored.session_key, list[int]()
    while after < stored.head and len(found) <= most:
        page, after = await selecting.select(tx, key, selection, after=after, upto=stored.head)
        found += await beside(_matching, selection, page)
    return found


def _matching(selection: Selection, page: selecting.Page) -> list[int]:
    if not selection.text:
        return [one.position for one in page]
    phrase = normalized(selection.text, is_exact=selection.is_exact)
    return [
        one.position for one in page if contains(one.chunk, phrase, is_exact=selection.is_exact)
    ]
