"""docs/guides/reading.md: its program prints what it says."""

import sys

from tests import ROOT
from tests.acceptance.guides.pages import printed, program

PAGE = (ROOT / "docs/guides/reading.md").read_text()


def test_the_program_prints_what_it_says(address: str) -> None:
    text, lines = program(PAGE)
    assert "connect()" in text
    text = text.replace("connect()", f"connect({address!r})")
    assert printed([sys.executable, "-"], address, text) == lines
