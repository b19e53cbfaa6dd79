"""What the tests of the embedded servers share: looking at processes, and being others."""

import os
import pwd
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests import ROOT

#: Debian's programs, where they are installed.
DEBIAN = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
#: The user that the tests are when they must not be root.
NOBODY = "nobody"


def rows(url: str) -> list[int]:
    """Returns the numbers that `add` kept."""
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS kept (n int)")
        return [n for (n,) in connection.execute("SELECT n FROM kept ORDER BY n")]


def add(url: str, number: int) -> None:
    """Keeps a number."""
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS kept (n int)")
        connection.execute("INSERT INTO kept VALUES (%s)", (number,))


def running(wanted: Callable[[Path], bool]) -> list[int]:
    """Returns the processes whose folder in /proc is wanted."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if wanted(entry):
                found.append(int(entry.name))
        except OSError:
            # Gone meanwhile, or a zombie.
            continue
    return found


def working_in(folder: Path) -> list[int]:
    """Returns the processes that work in a folder, or below it."""
    return running(lambda entry: (entry / "cwd").readlink().is_relative_to(folder))


def children_of(folder: Path) -> list[int]:
    """Returns the processes that work in a folder, or were started with it in their environment."""
    name = os.fsencode(folder)
    return [
        pid
        for pid in running(
            lambda entry: (
                (entry / "cwd").readlink().is_relative_to(folder)
                or name in (entry / "environ").read_bytes()
            )
        )
        if pid != os.getpid()
    ]


def naming(text: str) -> list[int]:
    """Returns the processes that were started with an argument that has `text` in it."""
    return running(lambda entry: text in (entry / "cmdline").read_text(errors="replace"))


def command_lines(folder: Path) -> str:
    """Returns what the processes that work in a folder were started with."""
    lines = []
    for pid in working_in(folder):
        try:
            lines.append((Path("/proc") / str(pid) / "cmdline").read_text())
        except FileNotFoundError:
            # A short-lived process of the server's has ended meanwhile.
            continue
    return "\n".join(lines)


def begin(script: str) -> "subprocess.Popen[str]":
    """Starts a Python script as a process of its own; what it prints is to be read."""
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(
    script: str, *, python: str = sys.executable, **identity: Any
) -> "subprocess.CompletedProcess[str]":
    """Runs a Python script to its end."""
    return subprocess.run(
        [python, "-B", "-c", textwrap.dedent(script)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
        **identity,
    )


def run_as_nobody(script: str) -> "subprocess.CompletedProcess[str]":
    """Runs a Python script as a user that is not root; skips where that cannot be."""
    if os.geteuid() != 0:
        return run(script)
    entry = pwd.getpwnam(NOBODY)
    # Ours may lie in root's home; the system's of the same version will do then.
    system = "/usr/bin/python{}.{}".format(*sys.version_info)
    for python in (sys.executable, system):
        try:
            return run(
                script, python=python, user=entry.pw_uid, group=entry.pw_gid, extra_groups=[]
            )
        except (PermissionError, FileNotFoundError):
            continue
    pytest.skip(f"{NOBODY} cannot get to a Python for the tests")
