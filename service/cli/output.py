"""What commands print: results to standard output, trouble to standard error."""

import json
import sys
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Sequence
from dataclasses import fields, is_dataclass
from datetime import date
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table
from rich.text import Text
from rich.tree import Tree

if TYPE_CHECKING:
    from palimpsest import PalimpsestError, PositionRange

#: Control characters, and what is shown in their place.
_CONTROLS = {
    code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"
}

#: The least that a column of texts is folded to, in characters.
LEAST_CHARACTERS = 12
#: A value on a line, in characters.
VALUE_CHARACTERS = 100
#: Millionths of a dollar in a dollar.
MICRO = 1_000_000

_Row = TypeVar("_Row")

# Texts from outside are printed as they are: `:key:` in them is no picture of a key.
out = Console(highlight=False, soft_wrap=True, emoji=False)
err = Console(stderr=True, highlight=False, soft_wrap=True, emoji=False)


class CommandError(Exception):
    """A command cannot do what it was asked; the message is one clear line."""


def fail(message: str, code: int = 1) -> NoReturn:
    """Prints one line and ends with `code`."""
    line = plain(" ".join(message.split()))
    print(f"error: {line}", file=sys.stderr)
    raise SystemExit(code)


def plain(text: str) -> str:
    """Returns a text with its control characters written out, except tab and line feed."""
    return text.translate(_CONTROLS)


def escaped(text: str) -> str:
    """Returns a text from outside as it may be printed: no control characters, no markup."""
    return escape(plain(text))


def say(line: str) -> None:
    """Prints a line of progress to standard error."""
    err.print(escaped(line))


def show(line: str = "", *, end: str = "\n") -> None:
    """Prints a line of the result to standard output, as it is except for control characters."""
    print(plain(line), end=end, flush=True)


def trust_mark(trust: str) -> str:
    """Returns what is printed after something that rests on a source; empty: it is trusted."""
    return "" if trust == "trusted" else f" ({trust} source)"


def show_json(value: Any) -> None:
    """Prints one JSON object, or a value of the client as one, on one line."""
    print(json.dumps(plain_json(value), ensure_ascii=False), flush=True)


def plain_json(value: Any, **renamed: str) -> Any:
    """Returns a value of the client as plain JSON.

    Fields have their names, unless `renamed` has another one; times are ISO 8601, bytes hex.
    """
    if is_dataclass(value):
        return {
            renamed.get(one.name, one.name): plain_json(getattr(value, one.name))
            for one in fields(value)
        }
    if isinstance(value, dict):
        return {name: plain_json(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain_json(inner) for inner in value]
    if isinstance(value, frozenset):
        return sorted(map(plain_json, value), key=str)
    if isinstance(value, date):
        return value.isoformat()
    return value.hex() if isinstance(value, bytes) else value


def error_json(error: "PalimpsestError") -> dict[str, Any]:
    """Returns an error of the service as plain JSON."""
    return {"reason": error.reason, "message": str(error), "metadata": dict(error.metadata)}


async def first(rows: AsyncIterator[_Row], limit: int) -> AsyncIterator[_Row]:
    """Yields `limit` rows at most, and reads no more."""
    left = limit
    async for row in rows:
        yield row
        left -= 1
        if not left:
            return


async def show_each(
    rows: AsyncIterable[_Row],
    line: Callable[[_Row], str],
    *,
    as_json: bool,
    to_json: Callable[[_Row], Any] = plain_json,
) -> None:
    """Prints a line for each row, or a JSON object."""
    async for row in rows:
        show_json(to_json(row)) if as_json else show(line(row))


async def show_list(
    rows: AsyncIterable[_Row],
    cells: Callable[[_Row], Iterable[Sequence[str]]],
    columns: Sequence[str],
    *,
    as_json: bool,
    to_json: Callable[[_Row], Any] = plain_json,
) -> None:
    """Prints a table with the lines that `cells` makes of each row, or a JSON object for each."""
    lines: list[Sequence[str]] = []
    async for row in rows:
        if as_json:
            show_json(to_json(row))
        else:
            lines += cells(row)
    if not as_json:
        show_rows(columns, lines)


def show_rows(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Prints a table of texts from outside; `new_table` says how columns are named."""
    table = new_table(*columns)
    for row in rows:
        table.add_row(*map(escaped, row))
    show_table(table)


def new_table(*columns: str) -> Table:
    """Returns a table without rows.

    A column whose name begins with > is of numbers, and one with = is never folded.
    """
    table = Table(box=None, pad_edge=False)
    for name in columns:
        table.add_column(
            name.lstrip(">="),
            justify="right" if name.startswith(">") else "left",
            no_wrap=name.startswith("="),
        )
    return table


def show_table(table: Table) -> None:
    """Prints a table of the result. Numbers, which are aligned right, are never cut.

    A terminal folds the texts of a table that is too wide. Elsewhere, or if folding is not
    enough, each row is one line of any length.
    """
    blanks = 2 * len(table.columns)
    widths = [_width(column) for column in table.columns]
    least = blanks
    for column, width in zip(table.columns, widths, strict=True):
        folds = column.justify != "right" and not column.no_wrap
        column.overflow = "fold"
        column.no_wrap = not folds
        column.min_width = min(width, LEAST_CHARACTERS) if folds else width
        least += column.min_width
    if out.is_terminal and least <= out.width:
        out.print(table)
    else:
        whole = sum(widths) + blanks
        Console(highlight=False, soft_wrap=True, emoji=False, width=whole).print(table)


def _width(column: Column) -> int:
    """Returns the width of the widest cell."""
    cells = (str(cell) for cell in (column.header, *column.cells))
    return max(
        cell_len(line) for cell in cells for line in Text.from_markup(cell).plain.split("\n")
    )


def tree_of(name: str, value: Any, *, width: int = 100, items: int = 3) -> Tree:
    """Returns a JSON value as a tree; texts are cut to `width`, long lists to `items`."""
    tree = Tree(escaped(name))
    _grow(tree, value, width, items)
    return tree


def _grow(tree: Tree, value: Any, width: int, items: int) -> None:
    if isinstance(value, dict):
        for key, child in value.items():
            if isinstance(child, dict | list):
                _grow(tree.add(escaped(str(key))), child, width, items)
            else:
                tree.add(f"{escaped(str(key))}: {escaped(cut(child, width))}")
        return
    for child in value[:items]:
        if isinstance(child, dict | list):
            _grow(tree.add("·"), child, width, items)
        else:
            tree.add(escaped(cut(child, width)))
    if len(value) > items:
        tree.add(f"… {len(value) - items} more")


def value_line(value: Any) -> str:
    """Returns a JSON value on one line."""
    return cut(json.dumps(value, ensure_ascii=False), VALUE_CHARACTERS)


def range_text(found: "PositionRange | None") -> str:
    """Returns positions as `positions` does; of none as of an empty range."""
    return positions(0, 0) if found is None else positions(found.first - 1, found.last)


def positions(from_position: int, to_position: int) -> str:
    """Returns from_position + 1 to to_position as a range: [7], [7-9], or nothing."""
    first, last = from_position + 1, to_position
    if first > last:
        return ""
    return f"[{first}]" if first == last else f"[{first}-{last}]"


def counted(number: int, one: str, many: str = "") -> str:
    """Returns a number with its noun: 1 node, 2 nodes."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def cut(value: object, width: int) -> str:
    """Returns a value on one line of at most `width` characters."""
    line = " ".join(str(value).split())
    return line if len(line) <= width else line[: width - 1] + "…"
