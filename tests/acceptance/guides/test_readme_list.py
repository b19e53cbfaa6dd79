"""README.md, "Keep it running": its commands work in their order, and no text is read twice."""

import os
import shlex
import subprocess
from pathlib import Path

from palimpsest import sync
from tests import ROOT
from tests.support import forking

LIST = (ROOT / "README.md").read_text().partition("## Keep it running")[2].partition("## ")[0]
PROGRAM = ".venv/bin/palimpsest"
NOTES = """harbour
=======

The harbour is closed on Sundays. The harbour museum is a collection of old ships.
"""
BOOK = """The keeper left the lighthouse in spring. His daughter stayed with the lamp.

Nobody saw the ship. It came at night, and the daughter kept the lamp burning.
"""


def listed() -> list[list[str]]:
    lines = [line.strip() for line in LIST.splitlines() if line.startswith(f"    {PROGRAM}")]
    commands = [shlex.split(line, comments=True) for line in lines]
    assert commands[0] == [PROGRAM, "up"]
    return commands[1:]


def test_the_list_works_in_its_order(address: str, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text(NOTES)
    (tmp_path / "book.txt").write_text(BOOK)
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    done = {}
    for _, *arguments in listed():
        done[" ".join(arguments[:2])] = ran(tmp_path, address, *arguments)
    assert "ingest book.txt" in done
    assert "'default'" not in done["ingest book.txt"].stderr, "no other memory read the book"
    read = ran(tmp_path, address, "cost").stdout
    sessions = {line.split()[0] for line in read.splitlines()[1:]}
    assert {"default", "library", "total"} <= sessions


def test_a_second_memory_that_reads_a_text_is_named(address: str, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text(NOTES)
    first = ran(tmp_path, address, "ingest", "notes.txt")
    assert "read by" not in first.stderr
    second = ran(tmp_path, address, "ingest", "notes.txt", "--kind", "tree", "-m", "book")
    assert "read by 'default' of session 'default' too" in second.stderr


def test_what_is_ingested_makes_a_memory_as_is_wished(address: str, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text(NOTES)
    (tmp_path / "s.py").write_text(
        "class Harbour:\n    facts: list[str]\n    '''What is said.'''\n"
    )
    wished = ["--schema", "s.py", "--task", "Keep it short.", "--model", "offline/extractive"]
    ran(tmp_path, address, "ingest", "notes.txt", *wished)
    shown = ran(tmp_path, address, "memory", "show", "--json").stdout
    assert '"facts"' in shown
    again = ran(tmp_path, address, "ingest", "notes.txt", *wished)
    assert "keeps its settings" in again.stderr
    tree = ["-s", "t", "--kind", "tree", "--segment-tokens", "123", "-m", "book"]
    ran(tmp_path, address, "ingest", "notes.txt", *tree)
    with sync.connect(address) as client:
        (made,) = client.session("t").memories()
    assert made.tree is not None
    assert made.tree.segment_tokens == 123
    wrong = command(tmp_path, address, "ingest", "notes.txt", "--segment-tokens", "123")
    assert wrong.returncode == 1
    assert "--segment-tokens: a prism memory has no such setting" in wrong.stderr


def ran(folder: Path, address: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    done = command(folder, address, *arguments)
    assert done.returncode == 0, (arguments, done.stderr)
    return done


def command(folder: Path, address: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    variables = {**os.environ, "PALIMPSEST_ADDRESS": address}
    return forking.run(arguments, environment=variables, seconds=200, folder=folder)
