"""Lists whose rows may be long: read up to so many rows, and up to so many bytes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from sqlalchemy import BigInteger, ColumnElement, Row, Select, func, literal, select

from storage.database import Transaction

T = TypeVar("T")

_NUMBER, _BYTES, _BEFORE, _FOUND = "row", "row_bytes", "bytes_before", "rows_found"


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
    number = func.row_number().over(order_by=order).label(_NUMBER)
    found = statement.add_columns(size.label(_BYTES), number).order_by(*order).limit(limit + 1)
    inner = found.subquery("f")
    before = func.sum(inner.c[_BYTES]).over(order_by=inner.c[_NUMBER], rows=(None, -1))
    sized = select(inner, before.label(_BEFORE), func.count().over().label(_FOUND)).subquery("s")
    named = [sized.c[column.name] for column in statement.selected_columns]
    wanted = (
        select(*named, sized.c[_FOUND])
        .where(
            sized.c[_NUMBER] <= limit,
            func.coalesce(sized.c[_BEFORE], 0) < literal(max_bytes, BigInteger),
        )
        .order_by(sized.c[_NUMBER])
    )
    rows: Sequence[Any] = (await tx.connection.execute(wanted)).all()
    return Listed(items=rows, more=bool(rows) and rows[0]._mapping[_FOUND] > len(rows))


def fields_of(row: Row[Any], of: type[Any]) -> dict[str, Any]:
    """Returns what of a row belongs to a dataclass."""
    return {name: row._mapping[name] for name in of.__dataclass_fields__}
