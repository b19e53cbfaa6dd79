"""docs/guides/prism.md, "Looking back and editing": commands and program print what it says."""

import sys

import pytest

from tests.acceptance.guides.pages import TIME, commands, printed, program
from tests.support.guides import section

PAGE = section("prism", "Looking back and editing")


@pytest.mark.prove
def test_the_guide_prints_what_it_says(address: str) -> None:
    listed = commands(PAGE)
    assert len(listed) > 10
    for command, lines in listed:
        shown = printed(["bash", "-c", command], address)
        assert shown == [TIME.sub("TIME", line) for line in lines], command
    text, lines = program(PAGE)
    assert "connect()" in text
    run = [sys.executable, "-"]
    assert printed(run, address, text.replace("connect()", f"connect({address!r})")) == lines
