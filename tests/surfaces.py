"""Writes docs/reference/surfaces.md: which surface has which feature, and the test that shows it.

`python -m tests.surfaces` writes the page of tests/surfaces.toml; a unit test compares them.
"""

import ast
import tomllib
from collections.abc import Iterator
from typing import Any

from tests import ROOT

PAGE = ROOT / "docs/reference/surfaces.md"
SOURCE = ROOT / "tests/surfaces.toml"

_HEAD = """# Surfaces

Which feature each surface has, besides the clients: they have [their own table](clients.md).
"yes" links the test that shows it, which `make test`, `make prove` or `make test-clients` runs. A
surface without a feature is used beside one that has it: all of them reach the same sessions.

<!-- written by tests/surfaces.py of tests/surfaces.toml -->
"""


def page() -> str:
    """Returns the page."""
    given = tomllib.loads(SOURCE.read_text())
    features, surfaces = given["features"], given["surfaces"]
    names = [f"[{name}](../../{one['guide']})" for name, one in surfaces.items()]
    lines = [f"| | {' | '.join(names)} |", "| --- " * (len(names) + 1) + "|"]
    for feature in features:
        cells = (_cell(one.get(feature, "")) for one in surfaces.values())
        lines.append(f"| {feature} | {' | '.join(cells)} |")
    return _HEAD + "\n".join(lines) + "\n"


def missing() -> Iterator[str]:
    """Yields what the source names and what does not exist."""
    given = tomllib.loads(SOURCE.read_text())
    for name, surface in given["surfaces"].items():
        for feature, test in surface.items():
            if feature == "guide":
                continue
            if feature not in given["features"]:
                yield f"{name}: {feature!r} is no feature"
            path, _, function = test.partition("::")
            if not (ROOT / path).is_file():
                yield f"{name}: there is no {path}"
            elif function and function not in _functions(path):
                yield f"{name}: {path} has no {function}"


def _cell(test: str) -> str:
    return f"[yes](../../{test.partition('::')[0]})" if test else ""


def _functions(path: str) -> set[str]:
    tree: Any = ast.parse((ROOT / path).read_text())
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in ast.walk(tree) if isinstance(node, kinds)}


if __name__ == "__main__":
    PAGE.write_text(page())
