"""Redacts chunks: removes their content, and everything that was derived from it.

The first transaction removes what clients can read: the content of the chunks, what memories
have written since they read them, and answers. Memories read the log again from there. What is
left, texts of calls and lists of words, is removed in batches, by this process or by workers.
"""

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from uuid import UUID, uuid4

from service.domain.access.audit import AuditAction, AuditEntry
from service.domain.log.erasures import BY_SERVICE, ErasureRequest
from service.domain.log.keeping_out import (
    MAX_LENGTHS,
    WHOLE,
    Keyed,
    holds_phrase,
    phrase_rule,
    whole_digest,
)
from service.domain.log.matching import contains, normalized
from service.domain.log.redactions import keyed_digest
from service.domain.memories.long_operations import OperationId, OperationKind
from service.domain.values.errors import InvalidInput, NotFound
from service.domain.values.reasons import Reason
from service.domain.values.tenancy import session_key
from service.domain.values.work_items import WorkItem, WorkKind
from service.llm.offloading import beside
from service.usecases.log.idempotency import store_result, tried_again
from service.usecases.log.lookup import session_not_found
from service.usecases.log.wake_ups import WakeUps
from service.usecases.memories import long_operations
from service.usecases.memories.long_operations import FoundOperation
from service.usecases.operations.chunk_redaction import edits_to_undo, redact_chunks
from service.usecases.operations.erasure_journal import ErasureJournal
from storage.access import audit
from storage.engine.database import Database, Transaction
from storage.log import deleting, keeping_out, selecting, sessions
from storage.log.selecting import Selection
from storage.log.sessions import StoredSession
from storage.memories.undone_edits import NOTHING_UNDONE, UndoneEdits
from storage.operations import copies, derived
from storage.operations.copies import ImportedCopy
from storage.operations.derived import RedactionRemoval
from storage.operations.exports import exports_of

#: The shortest text that is searched, in normal form, in characters.
MIN_TEXT_CHARACTERS = 3
#: Imported sessions in which one call redacts as well.
MAX_IMPORTS = 100
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
    #: First redact what has the same positions in sessions that were imported from it.
    include_imports: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class ImportRedaction:
    """Which chunks a redaction removed in a session that was imported from the one it is of."""

    session: str
    #: In ascending order.
    positions: Sequence[int]
    #: The removal of what was derived from them; empty when there is nothing to do.
    operation: str = ""
    #: Changes by hand that it undid there, or would undo.
    undone_edits: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class RedactionResult:
    """Which chunks a redaction removed, or would remove."""

    #: In ascending order; without those that were redacted before.
    positions: Sequence[int]
    #: How many texts are kept out from now on that were not before.
    kept_out: int = 0
    #: The removal of what was derived from them; None when there is nothing to do.
    operation: FoundOperation | None = None
    #: With `include_imports`: those that it found.
    imports: Sequence[ImportRedaction] = ()
    #: Changes by hand that it undid, or would undo.
    undone: UndoneEdits = NOTHING_UNDONE


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
        """Redacts chunks. Raises NotFound, InvalidInput (too many, or a text that is too short).

        Of imports first, each in a transaction of its own: a call that failed is repeated.
        """
        _check(wanted.selection)
        imports: list[ImportRedaction] = []
        if wanted.include_imports:
            for copy, upto in await self._imports(tenant_id, wanted.session):
                of_copy = replace(wanted, session=copy.name)
                with suppress(NotFound):
                    # It was deleted meanwhile.
                    done = await self._redact(tenant_id, of_copy, request, copy=copy, upto=upto)
                    imports.append(_of_import(copy, done))
        return await self._redact(tenant_id, wanted, request, imports=tuple(imports))

    async def _imports(self, tenant_id: UUID, session: str) -> Sequence[tuple[ImportedCopy, int]]:
        """Returns what was imported from a session, and up to where its positions agree.

        Without imports that are not complete: their end repeats the redaction.
        """
        key = session_key(tenant_id, session)
        async with self._database.transaction(tenant_id, name="redact") as tx:
            if await sessions.get(tx, key) is None:
                raise session_not_found(session)
            heads = {one.export_id: one.head for one in await exports_of(tx, key)}
            found, count = await copies.find(tx, heads, MAX_IMPORTS)
        if count > MAX_IMPORTS:
            raise InvalidInput(
                Reason.TOO_MANY_CHUNKS,
                f"{count} sessions were imported from it, and one call redacts in {MAX_IMPORTS}:"
                " redact in each of them, which the receipt of the erasure names",
                {"limit": MAX_IMPORTS},
                field="include_imports",
            )
        return [
            (one, min(heads[export] for export in one.descent if export in heads))
            for one in found
            if one.name
        ]

    async def _redact(
        self,
        tenant_id: UUID,
        wanted: RedactionRequest,
        request: ErasureRequest,
        *,
        imports: Sequence[ImportRedaction] = (),
        copy: ImportedCopy | None = None,
        upto: int | None = None,
    ) -> RedactionResult:
        """Redacts chunks of one session; of `copy` those up to a position."""
        key = session_key(tenant_id, wanted.session)
        keyed = partial(keyed_digest, self._token_key, tenant_id)
        # The log may be long, and appends do not wait while it is searched.
        searched, found = await self._found(tenant_id, _Matches(wanted, keyed, upto))
        redaction_id = uuid4()
        woken: Sequence[WorkItem] = ()

        async def run(tx: Transaction) -> RedactionResult:
            nonlocal woken
            locked = await deleting.lock_session(tx, key)
            stored = await sessions.get(tx, key) if locked else None
            # Positions of a deleted session mean nothing in a new one of its name.
            if stored is None or stored.incarnation != searched.incarnation:
                raise session_not_found(wanted.session)
            if copy is not None and not await copies.is_there(tx, copy):
                raise session_not_found(wanted.session)
            newer = _Matches(wanted, keyed, upto)
            await self._select(tx, newer, stored, searched.head)
            # Another redaction may have been first.
            left = await selecting.with_content(tx, key, found.positions)
            positions = self._checked([*left, *newer.positions])
            rules = await self._new_rules(tx, key, {**found.rules, **newer.rules})
            if wanted.validate_only or not (positions or rules):
                undone = NOTHING_UNDONE
                if positions:
                    undone = await edits_to_undo(tx, key, min(positions))
                result = RedactionResult(
                    positions=positions, kept_out=len(rules), imports=imports, undone=undone
                )
                return result if copy is not None else await store_result(tx, result)
            done = await redact_chunks(tx, key, redaction_id, positions, keyed, request, rules)
            woken = done.woken
            operation = await _record(tx, wanted, redaction_id, len(done.positions))
            result = RedactionResult(
                positions=done.positions,
                kept_out=len(rules),
                operation=operation,
                imports=imports,
                undone=done.undone,
            )
            return result if copy is not None else await store_result(tx, result)

        result = await tried_again(self._database, tenant_id, run, name="redact")
        if result.operation is None:
            return result
        self._wake_ups.add(woken)
        await self._finish(tenant_id, key, redaction_id)
        await self._journal.keep(tenant_id)
        # As it was stored, for a request that comes again.
        return result

    async def _found(
        self, tenant_id: UUID, matches: "_Matches"
    ) -> tuple[StoredSession, "_Matches"]:
        """Searches the log as it is; returns the session, and the matches."""
        key, after = session_key(tenant_id, matches.wanted.session), 0
        async with self._database.transaction(tenant_id, name="redact") as tx:
            stored = await sessions.get(tx, key)
        if stored is None:
            raise session_not_found(matches.wanted.session)
        while after < stored.head:
            async with self._database.transaction(tenant_id, name="redact") as tx:
                page, after = await selecting.select(
                    tx, key, matches.wanted.selection, after=after, upto=stored.head
                )
            await beside(matches.add, page)
            self._checked(matches.positions)
        return stored, matches

    async def _select(
        self, tx: Transaction, matches: "_Matches", stored: StoredSession, after: int
    ) -> None:
        """Searches what is after a position, in a session that is locked."""
        while after < stored.head:
            page, after = await selecting.select(
                tx, stored.session_key, matches.wanted.selection, after=after, upto=stored.head
            )
            await beside(matches.add, page)
            self._checked(matches.positions)

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

    async def _new_rules(
        self, tx: Transaction, key: UUID, rules: Collection[tuple[int, bytes]]
    ) -> Sequence[tuple[int, bytes]]:
        """Returns those rules that a session does not have yet. Raises InvalidInput."""
        if not rules:
            return ()
        found = (await keeping_out.read(tx, [key])).get(key)
        known = {} if found is None else found.by_words
        new = [one for one in rules if one[1] not in known.get(one[0], {})]
        before = sum(map(len, known.values()))
        if before + len(new) > self._max_rules:
            said = f"a session keeps at most {self._max_rules} texts out, and has {before}"
            raise _too_many_rules(said, self._max_rules)
        if len({*known, *(words for words, _ in new)} - {WHOLE}) > MAX_LENGTHS:
            said = f"texts that a session keeps out have at most {MAX_LENGTHS} numbers of words"
            raise _too_many_rules(said, MAX_LENGTHS)
        return new

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


async def _record(
    tx: Transaction, wanted: RedactionRequest, redaction_id: UUID, chunks: int
) -> FoundOperation:
    """Records what is done, for its client and in the audit log."""
    key = session_key(tx.tenant_id, wanted.session)
    operation_id = OperationId(session_key=key, operation_id=redaction_id)
    operation = await long_operations.request(tx, operation_id, OperationKind.REDACTION)
    await audit.record(
        tx,
        AuditEntry(
            action=AuditAction.CHUNKS_REDACT,
            session=wanted.session,
            target=str(operation_id),
            details={"chunks": chunks},
        ),
    )
    return operation


def _of_import(copy: ImportedCopy, done: RedactionResult) -> ImportRedaction:
    operation = "" if done.operation is None else str(done.operation.operation.id)
    return ImportRedaction(
        session=copy.name,
        positions=done.positions,
        operation=operation,
        undone_edits=done.undone.count,
    )


def _too_many_rules(message: str, limit: int) -> InvalidInput:
    return InvalidInput(
        Reason.TOO_MANY_CHUNKS,
        f"{message}; redact these chunks without keep_out",
        {"limit": limit},
        field="keep_out",
    )


class _Matches:
    """The chunks that a request selects, and what is to be kept out of their session."""

    def __init__(self, wanted: RedactionRequest, keyed: Keyed, upto: int | None = None) -> None:
        """`upto`: the last position that may be selected; None: the newest."""
        self.wanted = wanted
        self._upto = upto
        self.positions: list[int] = []
        #: The text, and chunks in which it is part of a word; without a text, all of the chunks.
        self.rules: dict[tuple[int, bytes], None] = {}
        self._keyed = keyed
        selection = wanted.selection
        self._normalized = normalized(selection.text, is_exact=selection.is_exact)
        self._rule = phrase_rule(selection.text, keyed) if wanted.keep_out else None
        if self._rule is not None:
            self.rules[self._rule] = None

    def add(self, page: selecting.Page) -> None:
        """Compares a page, which takes long."""
        selection = self.wanted.selection
        for one in page:
            if self._upto is not None and one.position > self._upto:
                return
            if selection.text and not contains(
                one.chunk, self._normalized, is_exact=selection.is_exact
            ):
                continue
            self.positions.append(one.position)
            if self.wanted.keep_out and not (
                self._rule is not None and holds_phrase(one.chunk, selection.text)
            ):
                self.rules[WHOLE, whole_digest(one.chunk, self._keyed)] = None
