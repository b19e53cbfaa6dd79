"""Reads a model's reply to a question about a working context: [ANSWER] and [STEPS]."""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator
from string import digits

from service.domain.prompting import sections
from service.domain.prompting.asking import SaidAnswer
from service.domain.prompting.sections import SourcesSection, header, loose_header

#: What follows a loose header of steps, where it is one. Digits are never given back: a
#: number can be cut into two in each of its places, which takes exponential time.
_ONLY_POSITIONS = r"(?:\d{1,19}+|steps?|and|to|none|[\s,;&#*•.\[\]()–—-]){0,400}+"
#: The beginning of a word that may stand between positions.
_BEGUN = r"(?:s|st|ste|a|an|t|n|no|non)?"
_STEPS = SourcesSection(
    header=header("STEPS?"),
    loose=loose_header("steps?|positions?|sources?"),
    only=re.compile(_ONLY_POSITIONS, re.IGNORECASE),
    only_so_far=re.compile(_ONLY_POSITIONS + _BEGUN, re.IGNORECASE),
    loose_names=("steps", "positions", "sources"),
)
#: Positions with something between them, at the start of a line or after the word. What cannot
#: be a digit is never given back: lines without one would be looked at eight times each.
_RUN = re.compile(
    r"(?:^[\s#*•\[(-]{0,8}+(?:\d{1,2}[.)][ \t]{1,4})??|\bsteps?+\b[\s#:\[(]{0,8}+)"
    r"(?:steps?+[ \t#]{0,4}+)?+"
    r"(\d{1,19}(?:(?:[ \t]{0,4}(?:,|;|&|-|–|—|\band\b|\bto\b)){1,2}[ \t#]{0,4}\d{1,19}){0,100})"
    r"(?!\d|[.)][ \t]{1,4}(?:step|\d))",
    re.IGNORECASE | re.MULTILINE,
)
_POSITIONS = re.compile(r"(\d+)(?:[ \t]*(?:-|–|—|to)[ \t#]*(\d+))?")


def read_answer(reply: str, known: Collection[int], is_cut: bool = False) -> SaidAnswer[int] | None:
    """Returns the answer of a reply and the positions that it names; None when it has none.

    Positions that are not `known` are dropped. `is_cut`: the reply lacks its end; a number there
    may be the beginning of another.
    """

    def positions(text: str) -> Iterator[int]:
        return _named(text.rstrip(digits) if is_cut else text, frozenset(known))

    return sections.read_answer(reply, _STEPS, positions, is_cut=is_cut)


def answer_so_far(reply: str) -> str:
    """Returns the answer of an unfinished reply, as `read_answer` will find it."""
    return sections.answer_so_far(reply, _STEPS)


def _named(text: str, known: Collection[int]) -> Iterator[int]:
    """Yields the known positions that a text names, each once."""
    left = sorted(known)
    for run in _RUN.finditer(text):
        for match in _POSITIONS.finditer(run[1]):
            first = int(match[1])
            # A run may have bounds at which there is no step.
            begin, end = bisect_left(left, first), bisect_right(left, int(match[2] or first))
            yield from left[begin:end]
            # So that many runs that name everything cost no more than one.
            del left[begin:end]
