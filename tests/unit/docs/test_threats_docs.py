"""The page of threats: every test that it names exists, and each item has a result."""

import ast
import re

from tests import ROOT

PAGE = (ROOT / "docs" / "reference" / "threats.md").read_text()
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in PAGE.splitlines()
    if line.startswith("| ") and not line.startswith(("| item", "| phase", "| threat", "| ---"))
]
RESULTS = ("stopped", "limited", "not stopped")


def result_of(row: list[str]) -> str:
    """Returns the cell of a row that says how it ends."""
    return next(cell for cell in reversed(row) if cell.split(":")[0] in RESULTS)


def test_every_test_that_is_named_exists() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)
    assert len(named) > 40
    missing = []
    for path, name in set(named):
        tree = ast.parse((ROOT / path).read_text()) if (ROOT / path).exists() else ast.parse("")
        functions = (ast.FunctionDef, ast.AsyncFunctionDef)
        if name not in {one.name for one in ast.walk(tree) if isinstance(one, functions)}:
            missing.append(f"{path}::{name}")
    assert sorted(missing) == []


def test_the_lists_are_whole() -> None:
    assert re.findall(r"^\| (LLM\d\d) ", PAGE, re.M) == [f"LLM{n:02}" for n in range(1, 11)]
    assert re.findall(r"^\| (ASI\d\d) ", PAGE, re.M) == [f"ASI{n:02}" for n in range(1, 11)]


def test_what_is_said_to_be_stopped_names_a_test() -> None:
    assert len(ROWS) > 30
    for row in ROWS:
        assert result_of(row).split(":")[0] in RESULTS, row
        if result_of(row) == "stopped":
            assert "tests/" in row[-1], row
