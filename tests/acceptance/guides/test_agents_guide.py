"""docs/guides/agents.md: its commands and its program print what it says."""

import re
import shlex
import sys
import time

import pytest

from service.cli import output
from tests import ROOT
from tests.acceptance.guides.pages import TIME, commands, printed, program
from tests.acceptance.state.test_state_cli import run

PAGE = (ROOT / "docs/guides/agents.md").read_text()
STEPS = "docs/guides/steps.jsonl"
#: What differs with the wording of prompts.
DIFFERS = (
    (re.compile(r"\(\d+ \+ \d+ tokens\)"), "(N tokens)"),
    (re.compile(r"[\d,]+ tokens, \d+% of the text"), "N tokens, P% of the text"),
    (TIME, "TIME"),
)
#: Totals of calls depend on the wording of prompts, too.
FIGURES = re.compile(r"[\d,.]+"), "N"
#: A memory compresses for a moment behind its log: what only reads shows that in the end.
COMPRESSES_SECONDS = 120.0
READS = (" list ", " show ", " context ", " revisions ", " diff ")


def comparable(command: str, lines: list[str]) -> list[str]:
    """Returns what a command prints without what differs from run to run."""
    is_cost = command.startswith("palimpsest cost")
    for pattern, instead in (*DIFFERS, FIGURES) if is_cost else DIFFERS:
        lines = [pattern.sub(instead, line) for line in lines]
    # No block of the page has an empty line.
    return [" ".join(line.split()) if is_cost else line.rstrip() for line in lines if line.strip()]


def says(command: str, address: str) -> list[str]:
    """Runs a command in this process, since starting takes long; returns what it prints."""
    done = run(*shlex.split(command)[1:], PALIMPSEST_ADDRESS=address)
    refused = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert done.returncode == 0 or refused, done.stderr
    return comparable(command, [*done.stdout.splitlines(), *refused])


@pytest.mark.prove
def test_the_guide_prints_what_it_says(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output.out, "width", 200)
    listed = commands(PAGE.partition("## On the command line")[2])
    assert len(listed) > 15
    for command, lines in listed:
        wanted = comparable(command, lines)
        command = command.replace(STEPS, str(ROOT / STEPS))
        shown = says(command, address)
        until = time.monotonic() + COMPRESSES_SECONDS
        reads = any(word in command for word in READS)
        while shown != wanted and reads and time.monotonic() < until:
            shown = says(command, address)
        assert shown == wanted, command
    text, lines = program(PAGE.partition("## From Python")[2])
    assert "connect()" in text
    text = text.replace("connect()", f"connect({address!r})")
    assert printed([sys.executable, "-"], address, text) == lines
