"""docs/guides/trees.md: its commands and its program print what it says."""

import re
import sys
import time

import pytest

from tests import ROOT
from tests.acceptance.guides.pages import commands, printed, program

PAGE = (ROOT / "docs/guides/trees.md").read_text()
STORY = "service/cli/tasks/lighthouse.txt"
#: What differs with the steps that a worker happens to make, and with the prompts' wording.
DIFFERS = (
    (re.compile(r"(revision) \d+"), r"\1 N"),
    (re.compile(r"\(\d+ \+ \d+ tokens\)"), "(N tokens)"),
    (re.compile(r"[\d,]+ tokens, \d+% of the text"), "N tokens, P% of the text"),
)
#: A tree goes on growing for a moment behind its log.
GROWS_SECONDS = 120.0


def comparable(lines: list[str]) -> list[str]:
    """Lines without what differs from run to run."""
    for pattern, instead in DIFFERS:
        lines = [pattern.sub(instead, line) for line in lines]
    return [line.rstrip() for line in lines]


@pytest.mark.prove
def test_the_guide_prints_what_it_says(address: str) -> None:
    listed = commands(PAGE)
    assert len(listed) > 10
    for command, lines in listed:
        run = ["bash", "-c", command.replace(STORY, str(ROOT / STORY))]
        shown = comparable(printed(run, address))
        until = time.monotonic() + GROWS_SECONDS
        while shown != comparable(lines) and " show " in command and time.monotonic() < until:
            shown = comparable(printed(run, address))
        assert shown == comparable(lines), command
    text, lines = program(PAGE)
    assert "connect()" in text
    text = text.replace("connect()", f"connect({address!r})")
    assert comparable(printed([sys.executable, "-"], address, text)) == comparable(lines)
