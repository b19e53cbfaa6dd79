"""Reading a model's reply to a question."""

import re
from collections.abc import Sequence

_ANSWER = re.compile(r"^\s*\**\[\s*ANSWER\s*\]\**\s*:?", re.IGNORECASE | re.MULTILINE)
_PATHS = re.compile(r"^\s*\**\[\s*PATHS\s*\]\**\s*:?", re.IGNORECASE | re.MULTILINE)
_BULLET = re.compile(r"^[\s*•-]*(?:\d+[.)])?\s*`?")


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
