"""Imports sessions, block by block; they are hidden until they are complete and verified."""

import json
from collections import Counter
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from service.domain.access.audit import AuditAction, AuditEntry
from service.domain.memories.specs import spec_from_json
from service.domain.operations.transfer import records
from service.domain.operations.transfer.blocks import Block, BlockReader, FileInvalid, Header
from service.domain.operations.transfer.records import RecordKind
from service.domain.prism.spec import PrismSpec
from service.domain.tree.nodes import TextOffset
from service.domain.values.errors import (
    AlreadyExists,
    Conflict,
    FailedPrecondition,
    InvalidInput,
    PalimpsestError,
)
from service.domain.values.reasons import Reason
from service.domain.values.tenancy import memory_id, session_key
from service.llm.offloading import beside
from service.settings.config import Limits
from service.usecases.log.lookup import being_deleted, keep_tenant
from service.usecases.log.room import find_unlimited
from service.usecases.memories.kinds import KindUseCases
from service.usecases.operations.import_erasures import LaterErasures
from service.usecases.operations.import_rules import (
    ImportRules,
    RecordRun,
    amounts_of,
    check_cursor,
    check_kinds,
    check_row,
    check_session,
    checked_chunk,
    runs_of,
    take_over_rules,
)
from service.usecases.operations.verify import verify_memory
from service.usecases.tree.kind import LeafTexts
from storage.access import audit
from storage.engine.database import Database, Transaction
from storage.engine.errors import Violated
from storage.log import deleting, sessions
from storage.log.deleting import REMOVING
from storage.log.sessions import StoredSession
from storage.memories import memories
from storage.operations import imports, verifying
from storage.operations.imports import RowsRefused, StoredImport
from storage.prism import states

#: Nodes that are written at once, with the texts of their leaves.
PAGE_NODES = 50


@dataclass(frozen=True, kw_only=True, slots=True)
class Imported:
    """How far an import is."""

    #: The last line that is durable.
    through_line: int
    #: The session, once it is complete and visible.
    session: StoredSession | None = None


class Importer:
    """Imports sessions, in one server process."""

    def __init__(
        self,
        database: Database,
        kinds: Mapping[str, KindUseCases],
        limits: Limits,
        rules: ImportRules | None = None,
        token_key: bytes = b"",
    ) -> None:
        """`token_key`: the deployment's, which makes the digests of redacted chunks."""
        self._database = database
        self._kinds = kinds
        self._limits = limits
        self._rules = rules or ImportRules()
        self._token_key = token_key

    async def open(
        self, tenant_id: UUID, header_line: bytes, session: str, *, restore_deleted: bool = False
    ) -> "ImportRun":
        """Begins an import under a name, or continues it where it was interrupted.

        `restore_deleted`: also of a session that was deleted after the export.

        Raises InvalidInput, AlreadyExists, Conflict, FailedPrecondition, Exhausted (quota),
        Unauthenticated (its tenant was deleted).
        """
        try:
            header = Header.from_line(header_line)
        except FileInvalid as error:
            raise _invalid(error) from error
        key = session_key(tenant_id, session)
        if header.memories > self._limits.max_memories:
            limit = self._limits.max_memories
            said = f"it has {header.memories} memories, and a session here at most {limit}"
            raise _invalid(FileInvalid(1, said))
        room = await self._rules.session_room(tenant_id)
        async with self._database.transaction(tenant_id, name="import") as tx:
            later = LaterErasures(header.export_id, self._token_key, restore_deleted)
            await later.read(tx)
            stored = await imports.get(tx, key)
            if stored is None or stored.finished_at is not None:
                await self._begin(tx, key, session, header)
                await room(tx)
                stored = await imports.get(tx, key)
        assert stored is not None, "it was begun in this transaction"
        if stored.export_id != header.export_id:
            raise FailedPrecondition(
                Reason.IMPORT_UNFINISHED,
                f"another import of session {session!r} is unfinished: continue it with its own"
                " file, or delete the session first",
                {"session": session, "line": stored.line},
            )
        return ImportRun(
            *(self._database, self._kinds, self._limits, self._rules, later),
            *(tenant_id, session, stored, header.version),
        )

    async def _begin(self, tx: Transaction, key: UUID, name: str, header: Header) -> None:
        await keep_tenant(tx)
        begun = await imports.begin(
            tx,
            key,
            name,
            export_id=header.export_id,
            source=header.session,
            exported_at=header.exported_at,
            head=header.head,
            memories=header.memories,
            keep_days=self._limits.unfinished_import_days,
        )
        if begun:
            return
        if await deleting.is_being_removed(tx, key, key):
            raise being_deleted("session", name)
        raise AlreadyExists(
            Reason.SESSION_EXISTS,
            f"there is a session {name!r} already: import it under another name",
            {"session": name},
        )


class ImportRun:
    """Writes the blocks of one stream."""

    def __init__(
        self,
        database: Database,
        kinds: Mapping[str, KindUseCases],
        limits: Limits,
        rules: ImportRules,
        later: LaterErasures,
        tenant_id: UUID,
        name: str,
        stored: StoredImport,
        version: int,
    ) -> None:
        self._database = database
        self._kinds = kinds
        self._limits = limits
        self._rules = rules
        self._later = later
        self._tenant_id = tenant_id
        self.name = name
        self._key = session_key(tenant_id, name)
        self._stored = stored
        self._version = version
        self._reader = BlockReader(
            digest=stored.digest,
            line=stored.line,
            counts=Counter(stored.counts),
            max_block_bytes=limits.max_import_block_bytes,
        )

    @property
    def through_line(self) -> int:
        """The last line that is durable."""
        return self._reader.line

    async def feed(self, data: bytes) -> AsyncGenerator[Imported]:
        """Writes the blocks that `data` completes, and yields how far it is after each.

        `data` continues after `through_line`. Raises InvalidInput, Conflict, Exhausted (quota).
        """
        blocks = self._reader.feed(data)
        while True:
            before = self._reader.line
            try:
                block = await beside(lambda: next(blocks, None))
            except FileInvalid as error:
                raise _invalid(error) from error
            if block is None:
                return
            if block.check is None:
                yield await self._finish(before)
            else:
                self._check_counts()
                await self._rules.pace(self._tenant_id, amounts_of(block))
                await self._write(before, block)
                yield Imported(through_line=self._reader.line)

    def _check_counts(self) -> None:
        """Raises InvalidInput for more than the header promises, before it is written."""
        try:
            check_kinds(self._reader.counts, self._reader.line, self._version)
            promised = {"session": 1, "chunk": self._stored.head, "memory": self._stored.memories}
            for name, count in promised.items():
                if self._reader.counts[name] > count:
                    said = f"the header promises {count:,} of {name!r}, and there are more"
                    raise FileInvalid(self._reader.line, said)
        except FileInvalid as error:
            raise _invalid(error) from error

    def end(self) -> None:
        """Raises InvalidInput unless the file was complete."""
        try:
            self._reader.finish()
        except FileInvalid as error:
            raise _invalid(error) from error

    async def _write(self, before: int, block: Block) -> None:
        try:
            # Like what reads blocks, it takes long for a large one.
            runs = await beside(runs_of, block)
            has_memories = any(one.kind is records.MEMORY for one in runs)
            find_room = self._rules.memory_room if has_memories else find_unlimited
            room = await find_room(self._tenant_id)
            async with self._database.transaction(self._tenant_id, name="import") as tx:
                await self._advance(tx, before)
                for one in runs:
                    await self._write_run(tx, one)
                await room(tx)
        except FileInvalid as error:
            raise _invalid(error) from error
        except RowsRefused as error:
            raise _refused(before, self._reader.line, str(error)) from error
        except Violated as error:
            said = f"they break {error.constraint or 'a rule'}"
            raise _refused(before, self._reader.line, said) from error

    async def _advance(self, tx: Transaction, before: int) -> None:
        moved = await imports.advance(
            tx,
            self._key,
            self._stored.export_id,
            before=before,
            line=self._reader.line,
            digest=self._reader.digest,
            counts=self._reader.counts,
            keep_days=self._limits.unfinished_import_days,
        )
        if not moved:
            raise Conflict(
                Reason.IMPORT_CONFLICT,
                f"the import of session {self.name!r} was deleted, or another stream continues"
                " it: open it again",
                {"session": self.name},
            )

    async def _write_run(self, tx: Transaction, run: RecordRun) -> None:
        kind, rows = run.kind, run.rows
        of = memory_id(self._key, run.memory) if kind.of_memory else None
        if kind is records.SESSION:
            for number, row in run.numbered():
                await self._set_session(tx, number, row)
        elif kind is records.MEMORY:
            for number, row in run.numbered():
                await self._add_memory(tx, number, row)
        elif kind is records.CURSOR:
            for number, row in run.numbered():
                await self._set_cursor(tx, number, run.memory, row)
        elif kind is records.CHUNK:
            await self._add_chunks(tx, run)
        else:
            for number, row in run.numbered():
                check_row(kind, number, row)
            if kind is records.NODE:
                await self._add_nodes(tx, run)
                return
            if kind in (records.ANSWER, records.BUDGET, records.USAGE):
                rows = [self._owned(kind, row) for row in rows]
            await imports.insert(tx, self._key, kind, rows, memory_id=of)

    async def _set_session(self, tx: Transaction, number: int, row: Mapping[str, Any]) -> None:
        if not await sessions.has_language(tx, row["language"]):
            said = f"the database cannot search texts in the language {row['language'][:60]!r}"
            raise FileInvalid(number, said)
        check_session(number, row)
        await imports.set_session(tx, self._key, row)

    async def _add_memory(self, tx: Transaction, number: int, row: Mapping[str, Any]) -> None:
        try:
            spec = spec_from_json(row["kind"], json.loads(row["spec"]), None)
            self._rules.check_spec(spec)
            spec.check(backlog_chunks=self._limits.backlog_chunks)
            self._kinds[row["kind"]].first(spec)
        except PalimpsestError as error:
            raise FileInvalid(number, f"its spec: {error.message}") from error
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
            raise FileInvalid(number, "its spec is none that this release knows") from error
        await imports.add_memory(tx, self._key, memory_id(self._key, row["name"]), row)

    async def _add_chunks(self, tx: Transaction, run: RecordRun) -> None:
        size, rows = 0, run.rows
        for number, row in run.numbered():
            chunk = checked_chunk(number, row, self._limits.max_chunk_bytes)
            if not chunk.is_redacted:
                row["digest"] = f"\\x{chunk.digest().hex()}"
            elif row["digest"] is None or chunk.size_bytes():
                raise FileInvalid(number, "it is redacted, and has content or no digest")
            size += chunk.size_bytes()
        await imports.insert(tx, self._key, records.CHUNK, rows)
        head = await imports.grow(tx, self._key, chunks=len(rows), size_bytes=size)
        wanted = range(head - len(rows) + 1, head + 1)
        for (number, row), position in zip(run.numbered(), wanted, strict=True):
            if row["position"] != position:
                raise FileInvalid(number, f"position {position} is expected here")

    async def _add_nodes(self, tx: Transaction, run: RecordRun) -> None:
        """Writes nodes with the words of leaves; verification finds what else is wrong.

        Leaves follow each other, so that the log is read once, however many they are.
        """
        of = memory_id(self._key, run.memory)
        numbered, end = list(run.numbered()), await imports.end_of_leaves(tx, self._key, of)
        texts = LeafTexts(tx, self._key)
        for begin in range(0, len(numbered), PAGE_NODES):
            page = numbered[begin : begin + PAGE_NODES]
            for number, row in page:
                row["leaf"] = None
                if row["level"] == 0:
                    start, before = TextOffset(row["start_position"], row["start_offset"]), end
                    end = TextOffset(row["end_position"], row["end_offset"])
                    if start != before or end <= start:
                        raise FileInvalid(number, "it does not go on where the leaf before ended")
                    row["leaf"] = await texts.words(start, end)
            await imports.insert(tx, self._key, run.kind, [row for _, row in page], memory_id=of)

    def _owned(self, kind: RecordKind, row: Mapping[str, Any]) -> dict[str, Any]:
        """Returns a row with the id of its memory in place of the name."""
        name = row["memory"]
        without = None if kind is records.ANSWER else str(self._key)
        owned = {**row, "owner": str(memory_id(self._key, name)) if name else without}
        if kind is records.ANSWER and row["chosen"] is not None:
            chosen = json.loads(row["chosen"])
            if isinstance(chosen, dict) and isinstance(chosen.get("memory_id"), str):
                chosen["memory_id"] = str(memory_id(self._key, chosen["memory_id"]))
            owned["chosen"] = json.dumps(chosen, ensure_ascii=False)
        return owned

    async def _set_cursor(
        self, tx: Transaction, number: int, name: str, row: Mapping[str, Any]
    ) -> None:
        of = memory_id(self._key, name)
        stored = await memories.get(tx, self._key, of)
        if stored is None:
            raise FileInvalid(number, f"there is no memory {name[:60]!r}")
        check_cursor(number, row, stored.kind, self._stored.head)
        await imports.set_cursor(tx, self._key, of, row)
        if not isinstance(stored.spec, PrismSpec):
            return
        try:
            found = await states.read_nearest(tx, self._key, of, row["revision"])
            value = None if found is None else found.memory(stored.spec.schema()).value_json
        except (ValueError, PalimpsestError) as error:
            raise FileInvalid(number, f"the value of memory {name[:60]!r} is invalid") from error
        if value is None:
            raise FileInvalid(number, f"memory {name[:60]!r} has no such revision")
        await imports.set_value(tx, self._key, of, row["revision"], value)

    async def _finish(self, before: int) -> Imported:
        """Verifies the hidden session, and makes it visible."""
        counts, stored = self._reader.counts, self._stored
        wanted = {"session": 1, "chunk": stored.head, "memory": stored.memories}
        for name, count in {**wanted, "cursor": stored.memories}.items():
            if counts[name] != count:
                said = f"the header promises {count:,} of {name!r}, and there are {counts[name]:,}"
                raise _invalid(FileInvalid(self._reader.line, said))
        await self._verify()
        async with self._database.transaction(self._tenant_id, name="import") as tx:
            await self._advance(tx, before)
            # What was erased while it was sent counts as well.
            redactions = await self._later.read(tx)
            rules = await take_over_rules(tx, self._key)
            await imports.show(tx, self._key, self._reader.line)
            await self._later.redact(tx, self._key, redactions)
            shown = await sessions.get(tx, self._key)
            entry = AuditEntry(
                action=AuditAction.SESSION_IMPORT,
                session=self.name,
                target=str(stored.export_id),
                details={"head": stored.head, "source_rules": rules},
            )
            await audit.record(tx, entry)
        assert shown is not None, "it was made visible in this transaction"
        return Imported(through_line=self._reader.line, session=shown)

    async def _verify(self) -> None:
        """Recomputes what follows from the log. Raises InvalidInput."""
        async with self._database.snapshot(self._tenant_id, name="import") as tx:
            await tx.execute(REMOVING, prepare=None)
            producer = await imports.wrong_producer(tx, self._key)
            if producer is not None:
                raise _wrong(f"producer {producer!r} has other chunks than its last sequence says")
            for of, name in await verifying.memory_ids(tx, self._key):
                checked = verify_memory(tx, self._kinds, self._key, of)
                async with aclosing(checked) as differences:
                    async for one in differences:
                        if not isinstance(one, int):
                            raise _wrong(f"memory {name!r}: {one.place}: {one.said}")
            async for _, wrong in verifying.wrong_citations(tx, self._key):
                for answer, position, _ in wrong:
                    raise _wrong(f"answer {answer} cites position {position}, which is not there")
            for request, first, last in await verifying.wrong_requests(tx, self._key):
                raise _wrong(f"request {request!r} is not that of positions {first} to {last}")


def _invalid(error: FileInvalid) -> InvalidInput:
    advice = "" if ": " in error.message[-120:] else "; export the session again"
    return InvalidInput(
        Reason.IMPORT_INVALID,
        f"line {error.line}: {error.message}{advice}",
        {"line": error.line},
        field="data",
    )


def _refused(before: int, line: int, said: str) -> InvalidInput:
    return _invalid(
        FileInvalid(before + 1, f"the records up to line {line} do not fit together: {said}")
    )


def _wrong(said: str) -> InvalidInput:
    said = f"the session is not consistent: {said}; export it again, and delete this import"
    return InvalidInput(Reason.IMPORT_INVALID, said[:1000], {"line": 0}, field="data")
