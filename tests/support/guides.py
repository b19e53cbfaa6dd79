"""The pages of docs/guides and their sections, for the tests that run or compare them."""

import re
from collections.abc import Iterator

from tests import ROOT

GUIDES = ROOT / "docs" / "guides"
REFERENCE = ROOT / "docs" / "reference"


def headings(page: str) -> Iterator[tuple[int, int, str]]:
    """Yields each heading of a page: the number of its line, its level and its text."""
    fenced = False
    for number, line in enumerate(page.splitlines()):
        if line.startswith("```"):
            fenced = not fenced
        elif not fenced and (found := re.match(r"(#+) (.+)", line)):
            yield number, len(found[1]), found[2]


def section(guide: str, title: str) -> str:
    """Returns the section of a guide with its headings one level higher, as a page of its own."""
    page = (GUIDES / f"{guide}.md").read_text()
    lines, found = page.splitlines(), list(headings(page))
    ((start, level),) = [(number, level) for number, level, text in found if text == title]
    ends = [number for number, other, _ in found if number > start and other <= level]
    end = min(ends, default=len(lines))
    for number, _, _ in found:
        if start <= number < end:
            lines[number] = lines[number].removeprefix("#")
    return "\n".join(lines[start:end]) + "\n"
