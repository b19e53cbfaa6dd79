"""Alerts: by promtool with made-up figures, and by Prometheus with a real deployment's."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.deployment.watched import ALERTS, PROMETHEUS

NEEDED = "Prometheus is not installed: run `make setup-deploy`"


def promtool(*arguments: str, folder: Path = PROMETHEUS) -> subprocess.CompletedProcess[str]:
    """A check of rules or of their tests."""
    assert shutil.which("promtool"), NEEDED
    return subprocess.run(
        ["promtool", *arguments], cwd=folder, capture_output=True, text=True, check=False
    )


def test_rules_are_sound() -> None:
    done = promtool("check", "rules", ALERTS.name)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "34 rules found" in done.stdout


def test_each_alert_fires_when_it_should_and_only_then() -> None:
    files = sorted(str(path.relative_to(PROMETHEUS)) for path in PROMETHEUS.glob("tests/*.yml"))
    assert files
    done = promtool("test", "rules", *files)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("file", "right", "wrong"),
    [
        ("memories.yml", "palimpsest_lag_seconds", "palimpsest_lag_second"),
        ("memories.yml", 'state="stalled"', 'state="stale"'),
        ("models.yml", "/ sum by (model) (rate", "* sum by (model) (rate"),
        ("database.yml", "unless palimpsest_database_refused_total offset 15m", ""),
    ],
)
def test_a_mistake_in_a_rule_is_noticed(file: str, right: str, wrong: str, tmp_path: Path) -> None:
    text = ALERTS.read_text()
    assert right in text
    (tmp_path / ALERTS.name).write_text(text.replace(right, wrong))
    (tmp_path / "tests").mkdir()
    shutil.copy(PROMETHEUS / "tests" / file, tmp_path / "tests")
    done = promtool("test", "rules", f"tests/{file}", folder=tmp_path)
    assert done.returncode == 1
    assert "FAILED" in done.stdout + done.stderr
