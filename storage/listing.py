"""Lists whose rows may be long: read up to so many rows, and up to so many bytes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from sqlalchemy import ColumnElement, Row, Select, func, select

from storage.database import Transaction

T = TypeVar("T")

_BYTES, _BEFORE, _FOUND = "bytes_of_row", "bytes_before", "rows_found"


@dataclass(frozen=True, kw_only=True, slots=True)
class Listed(Generic[T]):
    """A part of a list."""

    items: Sequence[T]
    #: Whether others follow.
    more: bool


async def list_rows(
    tx: Transaction,
    statement: Select[Any],
    *,
    size: ColumnElement[int],
    order: Sequence[ColumnElement[Any]],
    limit: int,
    max_bytes: int,
) -> Listed[Row[Any]]:
    """Returns the first rows of `statement` by `order`, at most `limit` and at least one.

    Ends with the row by which they have `max_bytes` together. `size` must be known without
    reading what is stored aside, as `octet_length` and `pg_column_size` are: the rows behind
    those that are returned are never read. `statement` selects the columns of `order`.
    """
    found = (
        statement.add_columns(size.label(_BYTES)).order_by(*order).limit(limit + 1).subquery("f")
    )
    number = func.row_number().over().label("number")
    numbered = select(*found.c, number).subquery("n")
    before = func.sum(numbered.c[_BYTES]).over(order_by=numbered.c.number, rows=(None, -1))
    sized = select(*numbered.c, before.label(_BEFORE), func.count().over().label(_FOUND)).subquery(
        "s"
    )
    wanted = (
        select(*(sized.c[column.name] for column in statement.selected_columns), sized.c[_FOUND])
        .where(sized.c.number <= limit, func.coalesce(sized.c[_BEFORE], 0) < max_bytes)
        .order_by(sized.c.number)
    )
    rows: Sequence[Any] = (await tx.connection.execute(wanted)).all()
    return Listed(items=rows, more=bool(rows) and rows[0]._mapping[_FOUND] > len(rows))


def fields_of(row: Row[Any], of: type[Any]) -> dict[str, Any]:
    """Returns what of a row belongs to a dataclass."""
    return {name: row._mapping[name] for name in of.__dataclass_fields__}
