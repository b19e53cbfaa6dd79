"""docs/guides/asking.md, "The readers": its program prints what it says."""

import sys

from tests.acceptance.guides.pages import printed, program
from tests.support.guides import section

PAGE = section("asking", "The readers")


def test_the_program_prints_what_it_says(address: str) -> None:
    text, lines = program(PAGE)
    assert "connect()" in text
    text = text.replace("connect()", f"connect({address!r})")
    assert printed([sys.executable, "-"], address, text) == lines
