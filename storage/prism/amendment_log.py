"""Reads a memory's amendments and rejections, with their positions."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, Select, and_, func, literal_column, or_, select

from service.domain.access.trust import Trust
from service.domain.prism.amendments import Op
from service.domain.values.paths import Path
from storage.engine.database import Transaction
from storage.engine.listing import ALL_BYTES, ListPage, fields_of, list_rows
from storage.tables import amendment, rejection, revision

#: Characters of a path that the index amendment_by_path has.
INDEXED_CHARACTERS = 500
#: Sorts after every path with the prefix before it.
_LAST = "\U0010ffff"
#: Amendments that one query reads.
READ_AMENDMENTS = 200
#: Parts of a history, between rollbacks, that one query covers.
READ_PARTS = 100

_BEGINNING: ColumnElement[str] = literal_column(
    f'"left"(amendment.path, {INDEXED_CHARACTERS}) COLLATE "C"'
)


@dataclass(frozen=True, kw_only=True, slots=True)
class LoggedAmendment:
    """An amendment with its revision."""

    revision: int
    ordinal: int
    from_position: int
    to_position: int
    #: One of `revision_kind` in storage/tables/memories.py.
    kind: str
    #: Normalized path.
    path: str
    op: Op
    #: Canonical JSON.
    value: str
    op_corrected: bool
    created_at: datetime
    #: That of the least trusted chunk that was read for it, where it was looked up.
    trust: Trust = Trust.TRUSTED


@dataclass(frozen=True, kw_only=True, slots=True)
class LoggedRejection:
    """A rejection with its revision."""

    revision: int
    ordinal: int
    from_position: int
    to_position: int
    proposal: str
    reason: str
    created_at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class AmendmentFilter:
    """Filters amendments; unset fields filter nothing."""

    #: Those at this path or below it.
    prefix: Path | None = None
    #: Those of steps that read a position from here …
    from_position: int = 0
    #: … to here, both included; 0 is open.
    to_position: int = 0


def _beginning(path: str) -> str:
    return path[:INDEXED_CHARACTERS]


def _at_or_below(path: Path) -> ColumnElement[bool]:
    if not path.tokens:
        return literal_column("true")
    text = str(path)
    begins = and_(_beginning(text) <= _BEGINNING, _beginning(text) + _LAST > _BEGINNING)
    return and_(begins, func.starts_with(amendment.c.path, text))


def _touches(path: Path) -> ColumnElement[bool]:
    """Returns the condition of paths at this one, below or above it."""
    above = [str(Path(path.tokens[:count])) for count in range(1, len(path.tokens))]
    if not above:
        return _at_or_below(path)
    parents = and_(_BEGINNING.in_([_beginning(one) for one in above]), amendment.c.path.in_(above))
    return or_(parents, _at_or_below(path))


def _filtered(wanted: AmendmentFilter) -> Sequence[ColumnElement[bool]]:
    conditions: list[ColumnElement[bool]] = []
    if wanted.prefix is not None:
        conditions.append(_at_or_below(wanted.prefix))
    if wanted.from_position or wanted.to_position:
        conditions.append(revision.c.to_position > revision.c.from_position)
        conditions.append(revision.c.to_position >= wanted.from_position)
    if wanted.to_position:
        conditions.append(revision.c.from_position < wanted.to_position)
    return conditions


_AMENDMENT_COLUMNS = (
    revision.c.kind,
    amendment.c.path,
    amendment.c.op,
    amendment.c.value,
    amendment.c.op_corrected,
)


async def list_amendments(
    tx: Transaction,
    session_key: UUID,
    memory_id: UUID,
    after: tuple[int, int],
    limit: int,
    wanted: AmendmentFilter | None = None,
) -> Sequence[LoggedAmendment]:
    """Returns up to `limit` amendments after (revision, ordinal), oldest first."""
    found = await page_amendments(
        tx, session_key, memory_id, after, limit, wanted or AmendmentFilter(), max_bytes=ALL_BYTES
    )
    return found.items


async def page_amendments(
    tx: Transaction,
    session_key: UUID,
    memory_id: UUID,
    after: tuple[int, int],
    limit: int,
    wanted: AmendmentFilter,
    *,
    max_bytes: int,
) -> ListPage[LoggedAmendment]:
    """Does as `list_amendments`, up to about `max_bytes` of paths and values."""
    statement = (
        _log_of(amendment, session_key, memory_id)
        .add_columns(*_AMENDMENT_COLUMNS)
        .where(
            func.row(amendment.c.revision, amendment.c.ordinal) > func.row(*after),
            *_filtered(wanted),
        )
    )
    found = await list_rows(
        tx,
        statement,
        size=func.octet_length(amendment.c.path) + func.octet_length(amendment.c.value),
        order=(amendment.c.revision, amendment.c.ordinal),
        limit=limit,
        max_bytes=max_bytes,
    )
    return ListPage(items=[_logged(row) for row in found.items], more=found.more)


async def list_sizes(
    tx: Transaction, session_key: UUID, memory_id: UUID, revisions: tuple[int, int]
) -> Mapping[int, int]:
    """Returns the bytes of each revision's amended values, from the first to the last of two."""
    statement = (
        select(amendment.c.revision, func.sum(func.octet_length(amendment.c.value)))
        .where(
            amendment.c.session_key == session_key,
            amendment.c.memory_id == memory_id,
            amendment.c.revision.between(*revisions),
        )
        .group_by(amendment.c.revision)
    )
    return {row[0]: row[1] for row in await tx.fetch(statement)}


def _logged(row: Any) -> LoggedAmendment:
    found = {name: getattr(row, name) for name in _FIELDS}
    return LoggedAmendment(**{**found, "op": Op(row.op)})


#: What a row of the log has.
_FIELDS = [name for name in LoggedAmendment.__dataclass_fields__ if name != "trust"]


async def page_rejections(
    tx: Transaction,
    session_key: UUID,
    memory_id: UUID,
    after: tuple[int, int],
    limit: int,
    *,
    max_bytes: int,
) -> ListPage[LoggedRejection]:
    """Returns up to `limit` rejections after (revision, ordinal), oldest first.

    Ends at about `max_bytes` of proposals and reasons.
    """
    statement = (
        _log_of(rejection, session_key, memory_id)
        .add_columns(rejection.c.proposal, rejection.c.reason)
        .where(func.row(rejection.c.revision, rejection.c.ordinal) > func.row(*after))
    )
    found = await list_rows(
        tx,
        statement,
        size=func.octet_length(rejection.c.proposal) + func.octet_length(rejection.c.reason),
        order=(rejection.c.revision, rejection.c.ordinal),
        limit=limit,
        max_bytes=max_bytes,
    )
    items = [LoggedRejection(**fields_of(row, LoggedRejection)) for row in found.items]
    return ListPage(items=items, more=found.more)


def _log_of(table: Any, session_key: UUID, memory_id: UUID) -> Select[Any]:
    return (
        select(
            table.c.revision,
            table.c.ordinal,
            revision.c.from_position,
            revision.c.to_position,
            revision.c.created_at,
        )
        .join(
            revision,
            and_(
                revision.c.session_key == table.c.session_key,
                revision.c.memory_id == table.c.memory_id,
                revision.c.revision == table.c.revision,
            ),
        )
        .where(table.c.session_key == session_key, table.c.memory_id == memory_id)
    )


async def touching(
    tx: Transaction,
    session_key: UUID,
    memory_id: UUID,
    path: Path,
    lineage: Sequence[tuple[int, int]],
) -> AsyncGenerator[LoggedAmendment]:
    """Yields the amendments at `path`, below or above it, newest first.

    `lineage` is the history to search, from `history.lineage`.
    """
    history = [(after, to) for after, to in lineage if after < to]
    for start in range(0, len(history), READ_PARTS):
        parts = history[start : start + READ_PARTS]
        before = (parts[0][1] + 1, 0)
        while True:
            statement = (
                _log_of(amendment, session_key, memory_id)
                .add_columns(*_AMENDMENT_COLUMNS)
                .where(
                    or_(
                        *(
                            and_(amendment.c.revision > after, amendment.c.revision <= to)
                            for after, to in parts
                        )
                    ),
                    amendment.c.revision > parts[-1][0],
                    func.row(amendment.c.revision, amendment.c.ordinal) < func.row(*before),
                    _touches(path),
                )
                .order_by(amendment.c.revision.desc(), amendment.c.ordinal.desc())
                .limit(READ_AMENDMENTS)
            )
            found = [_logged(row) for row in await tx.fetch(statement)]
            for one in found:
                yield one
            if len(found) < READ_AMENDMENTS:
                break
            before = (found[-1].revision, found[-1].ordinal)
