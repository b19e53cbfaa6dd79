"""Writes docs/reference/surfaces.md: which surface has which feature, and the test that shows it.

`python -m tests.surfaces` writes the page of tests/surfaces.toml; a unit test compares them. The
figures at its end are those of `verification.newcomer`, and stay.
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


#: What `verification.newcomer` writes below.
NEWCOMER = "<!-- written by verification/newcomer.py -->\n"
_NEWCOMER_HEAD = f"""
## How long the first fact takes

A newcomer clones the repository into an empty folder, sets the service up (`make setup`), starts
it (`palimpsest up`), and goes one surface's way, to a fact that is remembered and recalled. The
commands and programs are those of the surface's page. `python -m verification.newcomer` goes all
these ways and measures them. Lines are those of the user's programs and files, without blank lines,
comments and lone brackets. To the seconds of a surface add those of the service. The program that
uses MCP, the agent with hooks and the model after the proxy exist before: the run plays them, and
types nothing into them.

{NEWCOMER}"""


def page() -> str:
    """Returns the page, without the figures at its end."""
    given = tomllib.loads(SOURCE.read_text())
    features, surfaces = given["features"], given["surfaces"]
    names = [f"[{name}](../../{one['guide']})" for name, one in surfaces.items()]
    lines = [f"| | {' | '.join(names)} |", "| --- " * (len(names) + 1) + "|"]
    for feature in features:
        cells = (_cell(one.get(feature, "")) for one in surfaces.values())
        lines.append(f"| {feature} | {' | '.join(cells)} |")
    return _HEAD + "\n".join(lines) + "\n" + _NEWCOMER_HEAD


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
    figures = PAGE.read_text().partition(NEWCOMER)[2]
    PAGE.write_text(page() + figures)
