"""Distributions of other projects that overwrite our files are reported by name."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from service.domain.operations.doctor import Severity
from service.usecases.operations import doctor
from service.usecases.operations.strangers import strangers


@pytest.fixture
def theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns a folder of packages with the one that is `palimpsest` on PyPI."""
    described = tmp_path / "palimpsest-0.0.2.dist-info"
    described.mkdir()
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: palimpsest\nVersion: 0.0.2\n")
    package = tmp_path / "palimpsest"
    package.mkdir()
    (package / "__init__.py").write_text("def read_character_sketch(): ...\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


SAID = "palimpsest 0.0.2 is another project, and replaces the Python package `palimpsest`"


def test_without_them_nothing_is_said() -> None:
    assert strangers() == ""
    assert doctor._release().level is Severity.OK


def test_the_doctor_names_one(theirs: Path) -> None:
    found = doctor._release()
    assert (found.level, found.said) == (Severity.WARN, SAID)


def test_a_command_that_cannot_import_the_client_says_why(theirs: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "service.cli", "ask", "Why?"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(theirs), *sys.path])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: {SAID} (")
    assert len(done.stderr.splitlines()) == 1
