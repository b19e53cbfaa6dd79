"""A service for the tests, and a client of it."""

import os
import re
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from palimpsest import sync

ROOT = Path(__file__).parents[2]
#: How long a start may take on a slow machine.
START_SECONDS = 120


@pytest.fixture(scope="session")
def address() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="palimpsest-frameworks-") as name:
        folder = Path(name)
        # As root the servers run as another user.
        folder.chmod(0o755)
        yield from running_in(folder)


def running_in(folder: Path) -> Iterator[str]:
    """Runs a service with its data in a folder, and yields its address."""
    command = [str(ROOT / ".venv/bin/palimpsest"), "up", "--data-dir", str(folder / "data")]
    with (folder / "log").open("w") as log:
        running = subprocess.Popen(
            [*command, "--listen", "127.0.0.1:0"],
            env={"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/")},
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        assert running.stdout is not None
        try:
            for line in running.stdout:
                if found := re.search(r"listens at (127\.0\.0\.1:\d+)", line):
                    yield found[1]
                    break
            else:
                pytest.fail(f"the service did not start: {(folder / 'log').read_text()[-2000:]}")
        finally:
            running.send_signal(signal.SIGTERM)
            running.communicate(timeout=START_SECONDS)


@pytest.fixture(scope="session")
def client(address: str) -> Iterator[sync.Client]:
    with sync.connect(address) as client:
        yield client


@pytest.fixture
def name() -> str:
    """An id that nothing else has."""
    return f"id-{uuid4().hex}"
