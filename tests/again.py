"""`python -m tests.again`: what failed in the last run of the tests, once more and alone.

Tests of processes that get killed share two cores with each other, and one of some thousands
may fail there for want of time. This tells such a test from a broken one: what fails alone,
too, is broken. What the first run printed stands, and a test that passes only here has a
defect all the same. A run that did not end by itself, or in which more than `MOST` failed,
is not tried again.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

#: More failures than that are no chance.
MOST = 3
CACHE = Path(".pytest_cache/v")
#: How the last run ended, kept by conftest.py.
EXIT_STATUS = "palimpsest/exit_status"


def main() -> None:
    """Runs them; the exit code is that of the run."""
    failed = sorted(_kept("cache/lastfailed", {}))
    if _kept(EXIT_STATUS, None) != pytest.ExitCode.TESTS_FAILED or not 0 < len(failed) <= MOST:
        sys.exit(f"no second try: it is for a whole run in which 1 to {MOST} tests failed")
    print("failed, and tried once more, alone:", *failed, sep="\n  ", flush=True)
    sys.exit(subprocess.run([sys.executable, "-m", "pytest", *failed], check=False).returncode)


def _kept(name: str, default: Any) -> Any:
    path = CACHE / name
    return json.loads(path.read_text()) if path.exists() else default


if __name__ == "__main__":
    main()
