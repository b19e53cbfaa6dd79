"""Reading a model's reply to a question."""

import re
from collections.abc import Sequence

from service.domain.telling import section_text

# Blanks are bounded: a pattern that can begin at each of many blanks takes quadratic time.
_HEADER = r"^[ \t]{0,16}\*{0,3}\[[ \t]{0,4}%s[ \t]{0,4}\]\*{0,3}[ \t]{0,4}:?"
_ANSWER = re.compile(_HEADER % "ANSWER", re.IGNORECASE | re.MULTILINE)
_PATHS = re.compile(_HEADER % "PATHS", re.IGNORECASE | re.MULTILINE)
_BULLET = re.compile(r"^[\s*•-]*(?:\d+[.)])?\s*`?")


def told_answer(reply: str) -> str:
    """What of an unfinished reply is the answer, as `read_answer` will find it."""
    return section_text(reply, _ANSWER, _PATHS)


def read_answer(text: str) -> tuple[str, Sequence[str]]:
    """The answer and the paths it names, from a reply with [ANSWER] and [PATHS].

    Without the sections the whole reply is the answer, and it names no paths.
    """
    begins = _ANSWER.search(text)
    ends = _PATHS.search(text, begins.end() if begins else 0)
    answer = text[begins.end() if begins else 0 : ends.start() if ends else len(text)].strip()
    if ends is None:
        return answer, ()
    lines = (_BULLET.sub("", line).rstrip("` \t\r") for line in text[ends.end() :].splitlines())
    return answer, [line for line in lines if line.startswith(("$", "/"))]
