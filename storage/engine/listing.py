"""Reads lists whose rows may be long, limited by rows and by bytes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Column,
    ColumnElement,
    Row,
    Select,
    and_,
    func,
    lateral,
    literal,
    select,
    true,
)

from storage.engine.database import Transaction

T = TypeVar("T")

#: No limit of bytes.
ALL_BYTES = 2**63 - 1

_NUMBER, _BYTES, _BEFORE, _FOUND = "row", "row_bytes", "bytes_before", "rows_found"


@dataclass(frozen=True, kw_only=True, slots=True)
class ListPage(Generic[T]):
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
) -> ListPage[Row[Any]]:
    """Returns the first rows of `statement` by `order`, at most `limit` and at least one.

    Ends with the row by which they have `max_bytes` together. `size` must not read values that are
    stored out of line, as `octet_length` of a text does not: rows after the returned ones are never
    read. `statement` selects the columns of `order`.
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
    rows: Sequence[Any] = await tx.fetch(wanted)
    return ListPage(items=rows, more=bool(rows) and rows[0][-1] > len(rows))


async def walk_rows(
    tx: Transaction,
    statement: Select[Any],
    *,
    key: Column[Any],
    size: ColumnElement[int],
    order: Sequence[ColumnElement[Any]],
    limit: int,
    max_bytes: int,
) -> ListPage[Row[Any]]:
    """Does as `list_rows`, where a row must be read to know its size, as with JSON.

    Finds the keys of rows first, and then goes from row to row, so that only the returned ones are
    read. `key` is unique among the rows of `statement`.
    """
    # One more, which shows that others follow.
    first = statement.with_only_columns(key.label("k"), maintain_column_froms=True)
    ordered = first.order_by(*order).limit(limit + 1).subquery("o")
    keys = select(func.array_agg(ordered.c.k, type_=ARRAY(key.type)).label("k")).cte("keys")

    def one(number: Any, before: Any) -> Select[Any]:
        return (
            statement.add_columns(number.label(_NUMBER), before.label(_BEFORE), size.label(_BYTES))
            .where(key == keys.c.k[number])
            .correlate(keys)
        )

    start = lateral(one(literal(1), literal(0, BigInteger)).limit(1))
    walk = select(start).select_from(keys.join(start, true())).cte("walk", recursive=True)
    so_far = walk.c[_BEFORE] + walk.c[_BYTES]
    following = lateral(one(walk.c[_NUMBER] + 1, so_far).correlate(keys, walk).limit(1))
    going_on = and_(walk.c[_NUMBER] < limit, so_far < max_bytes)
    walk = walk.union_all(
        select(following).select_from(walk.join(keys, going_on).join(following, true()))
    )
    named = [walk.c[column.name] for column in statement.selected_columns]
    found = func.cardinality(keys.c.k).label(_FOUND)
    wanted = select(*named, found).select_from(walk.join(keys, true())).order_by(walk.c[_NUMBER])
    rows: Sequence[Any] = await tx.fetch(wanted)
    return ListPage(items=rows, more=bool(rows) and rows[0][-1] > len(rows))


def fields_of(row: Row[Any], of: type[Any]) -> dict[str, Any]:
    """Returns the columns of a row that are fields of a dataclass."""
    return {name: getattr(row, name) for name in of.__dataclass_fields__}
