"""What commands print: results to standard output, trouble to standard error."""

import json
import sys
from collections.abc import Mapping
from typing import Any, NoReturn

from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table
from rich.text import Text
from rich.tree import Tree

#: What could do something to a terminal, as it is shown instead.
_CONTROLS = {
    code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"
}

#: The least that a column of texts is folded to, in characters.
LEAST_CHARACTERS = 12

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
    """A text without control characters but tab and line feed: they are written out."""
    return text.translate(_CONTROLS)


def escaped(text: str) -> str:
    """A text from outside: no control characters, and no markup."""
    return escape(plain(text))


def say(line: str) -> None:
    """A line of progress, for people: standard error."""
    err.print(escaped(line))


def show(line: str = "", *, end: str = "\n") -> None:
    """A line of the result: standard output. But for control characters it is as it is."""
    print(plain(line), end=end, flush=True)


def show_json(value: Mapping[str, Any]) -> None:
    """One JSON object on one line."""
    print(json.dumps(value, ensure_ascii=False))


def show_table(table: Table) -> None:
    """Prints a table of the result. Numbers, which stand to the right, are never cut.

    A terminal folds texts where the table is too wide for it. Elsewhere, and where folding
    is not enough, each row is one line, however long.
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
    """What the widest cell takes."""
    cells = (str(cell) for cell in (column.header, *column.cells))
    return max(
        cell_len(line) for cell in cells for line in Text.from_markup(cell).plain.split("\n")
    )


def tree_of(name: str, value: Any, *, width: int = 100, items: int = 3) -> Tree:
    """A JSON value as a tree; texts are cut to `width`, long lists to `items`."""
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


def cut(value: object, width: int) -> str:
    """A value on one line of at most `width` characters."""
    line = " ".join(str(value).split())
    return line if len(line) <= width else line[: width - 1] + "…"
