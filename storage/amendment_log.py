"""The log of a memory: its amendments and rejections, and the positions behind them."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Select, and_, func, select

from service.domain.amendments import Op
from storage.database import Transaction
from storage.tables import amendment, rejection, revision


@dataclass(frozen=True, kw_only=True, slots=True)
class LoggedAmendment:
    """An amendment with its revision."""

    revision: int
    ordinal: int
    from_position: int
    to_position: int
    #: Normalized path.
    path: str
    op: Op
    #: Canonical JSON.
    value: str
    op_corrected: bool
    created_at: datetime


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


async def list_amendments(
    tx: Transaction, session_key: UUID, memory_id: UUID, after: tuple[int, int], limit: int
) -> Sequence[LoggedAmendment]:
    """Up to `limit` amendments behind (revision, ordinal), oldest first."""
    statement = _log_of(amendment, session_key, memory_id, after, limit).add_columns(
        amendment.c.path, amendment.c.op, amendment.c.value, amendment.c.op_corrected
    )
    return [
        LoggedAmendment(**{**row._mapping, "op": Op(row.op)})
        for row in await tx.connection.execute(statement)
    ]


async def list_rejections(
    tx: Transaction, session_key: UUID, memory_id: UUID, after: tuple[int, int], limit: int
) -> Sequence[LoggedRejection]:
    """Up to `limit` rejections behind (revision, ordinal), oldest first."""
    statement = _log_of(rejection, session_key, memory_id, after, limit).add_columns(
        rejection.c.proposal, rejection.c.reason
    )
    return [LoggedRejection(**row._mapping) for row in await tx.connection.execute(statement)]


def _log_of(
    table: Any, session_key: UUID, memory_id: UUID, after: tuple[int, int], limit: int
) -> Select[Any]:
    place = func.row(table.c.revision, table.c.ordinal)
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
        .where(
            table.c.session_key == session_key,
            table.c.memory_id == memory_id,
            place > func.row(*after),
        )
        .order_by(table.c.revision, table.c.ordinal)
        .limit(limit)
    )


async def read_ranges(
    tx: Transaction, session_key: UUID, memory_id: UUID, revisions: Sequence[int]
) -> dict[int, tuple[int, int]]:
    """The positions (a, b] behind each of `revisions`."""
    statement = select(revision.c.revision, revision.c.from_position, revision.c.to_position).where(
        revision.c.session_key == session_key,
        revision.c.memory_id == memory_id,
        revision.c.revision.in_(revisions),
    )
    return {
        row.revision: (row.from_position, row.to_position)
        for row in await tx.connection.execute(statement)
    }


async def find_writers(
    tx: Transaction, session_key: UUID, memory_id: UUID, path: str, at_revision: int
) -> Sequence[LoggedAmendment]:
    """The amendments at or below `path`, or above it, up to `at_revision`; newest first."""
    covers = func.starts_with(path, amendment.c.path) | func.starts_with(amendment.c.path, path)
    statement = (
        _log_of(amendment, session_key, memory_id, (-1, 0), 1000)
        .add_columns(amendment.c.path, amendment.c.op, amendment.c.value, amendment.c.op_corrected)
        .where(amendment.c.revision <= at_revision, covers)
        .order_by(None)
        .order_by(amendment.c.revision.desc(), amendment.c.ordinal.desc())
    )
    return [
        LoggedAmendment(**{**row._mapping, "op": Op(row.op)})
        for row in await tx.connection.execute(statement)
    ]
