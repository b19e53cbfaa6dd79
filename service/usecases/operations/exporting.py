"""Exports a session as lines, block by block."""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any
from uuid import UUID, uuid4

from service.domain.access.audit import AuditAction, AuditEntry
from service.domain.operations.transfer import records
from service.domain.operations.transfer.blocks import (
    BlockWriter,
    Check,
    ExportPlace,
    FileInvalid,
    Header,
)
from service.domain.operations.transfer.records import RecordKind
from service.domain.values.errors import Conflict, InvalidInput, NotFound
from service.domain.values.reasons import Reason
from service.domain.values.tenancy import session_key
from service.usecases.log.lookup import session_not_found
from storage.access import audit
from storage.engine.database import Database, Transaction
from storage.memories import source_changes
from storage.operations import exports
from storage.operations.exports import ExportCut

#: Records that are in one block, and where the export continues after them.
_Step = tuple[Sequence[Mapping[str, Any]], ExportPlace]
_Part = tuple[RecordKind, str]


class Exporter:
    """Exports sessions, in one server process."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def export(
        self, tenant_id: UUID, session: str, *, after: tuple[UUID, bytes] | None = None
    ) -> AsyncGenerator[bytes]:
        """Yields the header and the blocks of an export, or the blocks after a check.

        `after`: the id of the export, and the line of the last check that was received. Raises
        NotFound, InvalidInput, Conflict.
        """
        key = session_key(tenant_id, session)
        check = None if after is None else _check_of(after[1])
        async with self._database.transaction(tenant_id, name="export") as tx:
            if after is None:
                if await exports.is_redacting(tx, key):
                    raise Conflict(
                        Reason.EXPORT_CHANGED,
                        "what was derived from redacted chunks is still being removed: export the"
                        " session again soon",
                    )
                if await source_changes.list_names(tx, key):
                    raise Conflict(
                        Reason.EXPORT_CHANGED,
                        "a quarantine or a release of a source is still being applied to memories:"
                        " export the session again soon",
                    )
                cut = await exports.begin(tx, key, uuid4())
                if cut is not None:
                    await audit.record(tx, _audited(session, cut))
            else:
                cut = await exports.find(tx, key, after[0])
                if cut is not None and not await exports.is_there(tx, cut, ""):
                    cut = None
        if cut is None:
            raise session_not_found(session) if after is None else _unknown(session)
        if after is None:
            yield Header(
                session=session,
                export_id=cut.export_id,
                exported_at=cut.created_at,
                head=cut.head,
                memories=len(cut.memories),
            ).to_line()
        writer = BlockWriter(check)
        place = None
        async with aclosing(
            self._steps(tenant_id, cut, None if check is None else check.place)
        ) as steps:
            async for together, place in steps:
                for record in together:
                    writer.add(record)
                if writer.is_full():
                    yield writer.close(place)
        if place is not None and not writer.is_empty():
            yield writer.close(place)
        yield writer.end()
        async with self._database.transaction(tenant_id, name="export") as tx:
            await exports.finish(tx, cut)

    async def _steps(
        self, tenant_id: UUID, cut: ExportCut, place: ExportPlace | None
    ) -> AsyncGenerator[_Step]:
        """Yields all records after a place."""
        parts = _parts(cut)
        begin, keys = _begin(parts, place)
        for kind, memory in parts[begin:]:
            after, keys = keys, ()
            while True:
                async with self._database.snapshot(tenant_id, name="export") as tx:
                    if not await exports.is_there(tx, cut, memory):
                        raise _changed()
                    rows = await exports.read(tx, cut, kind, memory, after=after)
                    page = [one async for one in _page(tx, cut, kind, memory, rows)]
                for one in page:
                    yield one
                if not kind.keys or len(rows) < kind.page:
                    break
                after = _keys(kind, rows[-1])


def _audited(session: str, cut: ExportCut) -> AuditEntry:
    return AuditEntry(
        action=AuditAction.SESSION_EXPORT,
        session=session,
        target=str(cut.export_id),
        details={"head": cut.head},
    )


def _parts(cut: ExportCut) -> list[_Part]:
    """Returns what an export reads, in order."""
    parts: list[_Part] = [(kind, "") for kind in records.BEFORE_MEMORIES]
    for memory in cut.memories.values():
        left_out = {
            one for of, kinds in records.ONLY_OF.items() for one in kinds if of != memory.kind
        }
        parts += [(kind, memory.name) for kind in records.PER_MEMORY if kind not in left_out]
    # The parts of an answer come with it.
    last = (records.ANSWER, records.BUDGET, records.USAGE)
    return [*parts, *((kind, "") for kind in last)]


def _begin(parts: Sequence[_Part], place: ExportPlace | None) -> tuple[int, tuple[Any, ...]]:
    """Returns the part that a place is in, and the keys that it is after. Raises InvalidInput."""
    if place is None:
        return 0, ()
    for at, (kind, memory) in enumerate(parts):
        if (kind.name, memory) == (place.kind, place.memory):
            if len(kind.keys) != len(place.keys):
                break
            if not kind.keys:
                return at + 1, ()
            try:
                keys = zip(kind.keys, place.keys, strict=True)
                return at, tuple(kind.field(name).from_json(value) for name, value in keys)
            except ValueError as error:
                raise _wrong_check() from error
    raise _wrong_check()


async def _page(
    tx: Transaction,
    cut: ExportCut,
    kind: RecordKind,
    memory: str,
    rows: Sequence[Mapping[str, Any]],
) -> AsyncIterator[_Step]:
    for row in rows:
        if kind is records.CURSOR:
            row = exports.cursor_of(row, cut.memories[memory])
        elif kind is records.LETTER and not exports.open_letter_fits(cut.memories[memory], row):
            continue
        place = ExportPlace(kind=kind.name, memory=memory, keys=_keys(kind, row))
        if kind is not records.ANSWER:
            yield [kind.to_json(row, memory)], place
            continue
        parts = [
            record
            for part in (records.EVENT, records.RATING)
            async for record in _of_answer(tx, cut, part, row["answer_id"])
        ]
        yield [kind.to_json(row), *parts], place


async def _of_answer(
    tx: Transaction, cut: ExportCut, kind: RecordKind, answer_id: UUID
) -> AsyncIterator[Mapping[str, Any]]:
    after: tuple[Any, ...] = ()
    while True:
        rows = await exports.read(tx, cut, kind, after=after, answer_id=answer_id)
        for row in rows:
            yield kind.to_json(row)
        if len(rows) < kind.page:
            return
        after = _keys(kind, rows[-1])


def _keys(kind: RecordKind, row: Mapping[str, Any]) -> tuple[Any, ...]:
    """Returns the keys of a row, as a check has them."""
    return tuple(kind.field(name).to_json(row[name]) for name in kind.keys)


def _check_of(line: bytes) -> Check:
    try:
        return Check.from_line(line)
    except FileInvalid as error:
        raise _wrong_check() from error


def _wrong_check() -> InvalidInput:
    return InvalidInput(
        Reason.FIELD_INVALID,
        "resume.check_line is no line of a check of this export: begin a new export",
        field="resume.check_line",
    )


def _unknown(session: str) -> NotFound:
    return NotFound(
        Reason.EXPORT_NOT_FOUND,
        f"session {session!r} has no such export, or was deleted since: begin a new export",
        {"session": session},
    )


def _changed() -> Conflict:
    return Conflict(
        Reason.EXPORT_CHANGED,
        "the session, or one of its memories, was deleted or taken back during the export, or"
        " chunks were redacted: begin a new one",
    )
