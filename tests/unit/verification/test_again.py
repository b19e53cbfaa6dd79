"""The second try of tests that failed: who gets one, and what it decides."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT

TESTS = """
def test_late():
    pass

def test_broken():
    assert 1 == 2

def test_sound():
    pass
"""


def again(folder: Path, failed: list[str], *, ended: int) -> "subprocess.CompletedProcess[str]":
    cache = folder / ".pytest_cache/v"
    (cache / "cache").mkdir(parents=True)
    (cache / "cache/lastfailed").write_text(json.dumps(dict.fromkeys(failed, True)))
    (cache / "palimpsest").mkdir()
    (cache / "palimpsest/exit_status").write_text(str(ended))
    (folder / "test_it.py").write_text(TESTS)
    return subprocess.run(
        [sys.executable, "-m", "tests.again"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_what_passes_alone_lets_the_run_pass(tmp_path: Path) -> None:
    done = again(tmp_path, ["test_it.py::test_late"], ended=1)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "test_it.py::test_late" in done.stdout
    assert "1 passed" in done.stdout


def test_what_fails_alone_fails_the_run(tmp_path: Path) -> None:
    done = again(tmp_path, ["test_it.py::test_broken", "test_it.py::test_late"], ended=1)
    assert done.returncode == 1
    assert "1 failed, 1 passed" in done.stdout


@pytest.mark.parametrize(
    ("failed", "ended"),
    [
        pytest.param([], 1, id="none"),
        pytest.param([f"test_it.py::test_{n}" for n in range(4)], 1, id="too many"),
        pytest.param(["test_it.py::test_late"], 2, id="broken off"),
        pytest.param(["test_it.py::test_late"], 0, id="a later run passed"),
    ],
)
def test_other_runs_get_no_second_try(tmp_path: Path, failed: list[str], ended: int) -> None:
    done = again(tmp_path, failed, ended=ended)
    assert done.returncode == 1
    assert "no second try" in done.stderr
    assert "test_it.py" not in done.stdout
