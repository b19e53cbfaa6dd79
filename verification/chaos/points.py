"""The points where a process may be made to fail, derived from the source of the product.

Each is `name:step`. The names are those of transactions with a dot in them (`commit.tree`), and
those that code passes to `boundary` itself (`model`). Transactions without a dot only read, are for
operators, or wait for the clock: retention finds rows that are days old, and a pass that was killed
goes on after a lease of minutes. They report to the hook too, but no traffic of a sweep passes all
of them; tests kill processes there (`tests.support.killing`), or end a pass at each boundary.
"""

import ast
import random
from collections.abc import Iterator, Mapping
from functools import cache

from tests import ROOT

#: Before a statement of a transaction, before its commit, and after it.
STATEMENT, COMMIT, COMMITTED = "statement", "commit", "committed"
#: Where each statement commits by itself, there is no statement before the commit.
_BY_THEMSELVES = ("without_tenant", "notify")

#: `name:step`.
Point = str
#: Statements of a transaction that pass before one fails, at most.
_MOST_SKIPPED = 2


@cache
def points() -> tuple[Point, ...]:
    """Returns all points, in alphabetical order."""
    return tuple(sorted({point for one in _trees().values() for point in _points_of(one)}))


def skipped(rng: random.Random, point: Point) -> int:
    """Chooses how many pass a point before one fails there: not always a first statement."""
    return rng.randint(0, _MOST_SKIPPED) if point.endswith(f":{STATEMENT}") else 0


def reporters() -> Mapping[Point, list[str]]:
    """Returns the places in the source, `file:line`, that report each point."""
    found: dict[Point, list[str]] = {}
    for file, tree in _trees().items():
        for node in ast.walk(tree):
            for point in _of_call(node):
                found.setdefault(point, []).append(f"{file}:{getattr(node, 'lineno', 0)}")
    return found


@cache
def _trees() -> Mapping[str, ast.Module]:
    files = [file for folder in ("service", "storage") for file in (ROOT / folder).rglob("*.py")]
    return {str(file.relative_to(ROOT)): ast.parse(file.read_text()) for file in sorted(files)}


def _points_of(tree: ast.Module) -> Iterator[Point]:
    for node in ast.walk(tree):
        yield from _of_call(node)


def _of_call(node: ast.AST) -> Iterator[Point]:
    """Yields the points that a call reports."""
    if not isinstance(node, ast.Call):
        return
    called = node.func.attr if isinstance(node.func, ast.Attribute) else _name(node.func)
    if called == "boundary" and all(_literal(one) for one in node.args):
        name, step = (_literal(one) for one in node.args)
        yield f"{name}:{step}"
    name = next((_literal(one.value) for one in node.keywords if one.arg == "name"), "")
    if "." in name and called not in _OTHERS:
        for step in (COMMIT, COMMITTED) if called in _BY_THEMSELVES else _STEPS:
            yield f"{name}:{step}"


#: Findings of `verify`, and stages of a removal, have names of the same form.
_OTHERS = ("Difference", "_Stage")
_STEPS = (STATEMENT, COMMIT, COMMITTED)


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else ""


def _literal(node: ast.expr) -> str:
    value = node.value if isinstance(node, ast.Constant) else None
    return value if isinstance(value, str) else ""
