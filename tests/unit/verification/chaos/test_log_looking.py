"""What logs may say after a run, and what they may not."""

import json
from pathlib import Path

import pytest

from verification.chaos.log_looking import Looked, look

TRACEBACK = "Traceback (most recent call last):\n  File x, line 1, in f\n"
LOST = "cannot reach PALIMPSEST_SIGNALS_DATABASE_URL"


def _look(folder: Path, *lines: str) -> Looked:
    (folder / "worker-1.log").write_text("-- run 1 of ['work']\n" + "".join(lines))
    return look(folder)


def _event(level: str, event: str, exception: str = "") -> str:
    said = {"event": event, "level": level, "logger": "palimpsest"}
    return json.dumps(said | ({"exception": exception} if exception else {})) + "\n"


@pytest.mark.parametrize(
    "line",
    [
        _event("warning", "work deferred"),
        _event("error", "work failed", f"{TRACEBACK}FailedOnPurpose: told to fail at work.ended"),
        _event("error", "listener error: ConnectorException('Database error.')"),
        _event("error", "poll_jobs_to_abort error", f"{TRACEBACK}ConnectorException: lost"),
        f"{TRACEBACK}service.cli.output.CommandError: {LOST}: refused\n",
        # Of one that was killed while it wrote.
        '{"event": "work fai\n',
    ],
)
def test_what_faults_explain_is_no_violation(tmp_path: Path, line: str) -> None:
    assert _look(tmp_path, "working\n", line, "-- run 2 of ['work']\n").violations == ()


@pytest.mark.parametrize(
    "line",
    [
        _event("error", "look failed", f"{TRACEBACK}KeyError: 'x'"),
        _event("error", "something broke"),
        _event("warning", "odd", f"{TRACEBACK}KeyError: 'x'"),
        _event("error", "Task exception was never retrieved", "FailedOnPurpose: told to fail at x"),
        _event("warning", "Task was destroyed but it is pending!"),
        "RuntimeWarning: coroutine 'f' was never awaited\n",
        f"{TRACEBACK}KeyError: 'x'\n",
        f"{TRACEBACK}service.cli.output.CommandError: the port is taken\n",
    ],
)
def test_what_nothing_explains_is_shown_with_its_process(tmp_path: Path, line: str) -> None:
    (wrong,) = _look(tmp_path, "working\n", line, _event("warning", "work deferred")).violations
    assert wrong.promise == "logs"
    assert wrong.what.startswith("worker-1: ")


def test_what_was_explained_is_counted(tmp_path: Path) -> None:
    line = _event("error", "work failed", f"{TRACEBACK}FailedOnPurpose: told to fail at work.ended")
    assert _look(tmp_path, line, line).explained == {"a point that was told to fail": 2}
