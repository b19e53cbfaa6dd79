"""Signals at `up` and `demo`, at bad moments: everything ends, in order, and nothing is left."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.embedded import children_of, naming
from tests.support.harness import eventually

pytestmark = pytest.mark.prove

#: How long a stop may take on a busy machine.
STOP_SECONDS = 200


class Command:
    """`palimpsest`, running, with its data and its temporary files below a folder."""

    def __init__(self, folder: Path, *arguments: str, standard_output: bool = False) -> None:
        self.popen = subprocess.Popen(
            [sys.executable, "-m", "service.cli", *arguments],
            env={**os.environ, "PALIMPSEST_DATA_DIR": str(folder / "data"), "TMPDIR": str(folder)},
            stdout=subprocess.PIPE if standard_output else subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.said = ""

    def address(self) -> str:
        """Returns where it listens, once it does; for one whose standard output is wanted."""
        assert self.popen.stdout is not None
        for line in self.popen.stdout:
            if line.startswith("Palimpsest listens at "):
                return line.removeprefix("Palimpsest listens at ").partition(";")[0]
        raise AssertionError(f"it never listened: {self.end()}, {self.said}")

    def wait_for(self, text: str) -> None:
        """Reads until it says a text."""
        assert self.popen.stderr is not None
        for line in self.popen.stderr:
            self.said += line
            if text in line:
                return
        raise AssertionError(f"it never said {text!r}: {self.said}")

    def end(self) -> int:
        """Waits for its end; the exit code."""
        self.said += self.popen.communicate(timeout=STOP_SECONDS)[1]
        return self.popen.returncode


@pytest.fixture
def up(folder: Path) -> Iterator[Command]:
    command = Command(folder, "up", "--listen", "127.0.0.1:0")
    yield command
    command.popen.kill()
    command.popen.communicate()


@pytest.fixture
def demo(folder: Path) -> Iterator[Command]:
    command = Command(folder, "demo")
    yield command
    command.popen.kill()
    command.popen.communicate()


@pytest.mark.parametrize(
    ("moment", "number"),
    [
        ("starting PostgreSQL", signal.SIGINT),
        ("starting Valkey", signal.SIGTERM),
        ("migrating", signal.SIGHUP),
        ("migrating", signal.SIGINT),
        ("API", signal.SIGTERM),
    ],
)
def test_a_start_can_be_stopped(
    folder: Path, up: Command, moment: str, number: signal.Signals
) -> None:
    up.wait_for(moment)
    up.popen.send_signal(number)
    assert up.end() == 128 + number, up.said
    assert "Traceback" not in up.said
    assert children_of(folder) == []


def test_a_stop_is_not_cut_short(folder: Path, up: Command) -> None:
    up.wait_for("starting the API")
    # Said a moment before; without one its end would be seen before the signal is.
    eventually("the API is there", lambda: command_named(folder, "serve"))
    up.popen.send_signal(signal.SIGTERM)
    eventually("the API has ended", lambda: not command_named(folder, "serve"))
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        up.popen.send_signal(number)
    assert up.end() == 128 + signal.SIGTERM, up.said
    assert "Traceback" not in up.said
    assert children_of(folder) == []
    log = (folder / "data/postgres/postgres.log").read_text()
    assert "not properly shut down" not in log


def command_named(folder: Path, name: str) -> set[int]:
    return set(naming(f"service.cli\0{name}")) & set(children_of(folder))


@pytest.mark.parametrize(
    ("moment", "number"),
    [
        ("streaming", signal.SIGINT),
        ("streaming", signal.SIGTERM),
        ("chunks acked", signal.SIGINT),
    ],
)
def test_a_demo_that_is_stopped_leaves_nothing_behind(
    folder: Path, demo: Command, moment: str, number: signal.Signals
) -> None:
    demo.wait_for(moment)
    demo.popen.send_signal(number)
    eventually("its worker is told", lambda: not command_named(folder, "work"))
    demo.popen.send_signal(signal.SIGINT)
    assert demo.end() == 128 + number, demo.said
    assert "Traceback" not in demo.said
    assert children_of(folder) == []
    assert list(folder.iterdir()) == []
