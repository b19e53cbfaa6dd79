"""Reading a model's reply to a question."""

import re

from service.domain.answers.reply_streaming import section_text
from service.domain.prompting.asking import SaidAnswer
from service.domain.prompting.no_answers import is_blank, may_say_none, says_none
from service.domain.prompting.thoughts import behind_unopened, said

# Blanks are bounded: a pattern that can begin at each of many blanks takes quadratic time.
_HEADER = r"^[ \t]{0,16}\*{0,3}\[[ \t]{0,4}%s[ \t]{0,4}\]\*{0,3}[ \t]{0,4}:?"
_ANSWER = re.compile(_HEADER % "ANSWER", re.IGNORECASE | re.MULTILINE)
_PATHS = re.compile(_HEADER % "PATHS", re.IGNORECASE | re.MULTILINE)
_BULLET = re.compile(r"^[\s*•-]*(?:\d+[.)])?\s*`?")


def told_answer(reply: str) -> str:
    """What of an unfinished reply is the answer, as `read_answer` will find it.

    Words that may turn out to say that there is none are held back.
    """
    text = section_text(reply, _ANSWER, _PATHS)
    return "" if may_say_none(text) else text


def read_answer(reply: str, is_cut: bool = False) -> SaidAnswer[str] | None:
    """The answer and the paths it names, from a reply with [ANSWER] and [PATHS].

    Without the sections the whole reply is the answer, and it names no paths. None when
    nothing is said. `is_cut`: the reply lacks its end; what is left of a path there names
    a place above the one that was meant.
    """
    text = said(reply)
    begins = _ANSWER.search(text)
    if begins is None:
        text = behind_unopened(text)
    ends = _PATHS.search(text, begins.end() if begins else 0)
    answer = text[begins.end() if begins else 0 : ends.start() if ends else len(text)].strip()
    if is_blank(answer):
        return None
    if says_none(answer):
        return SaidAnswer(text="")
    if ends is None:
        return SaidAnswer(text=answer, is_cut=is_cut)
    named = text[ends.end() :]
    if is_cut:
        named = named[: named.rfind("\n") + 1]
    lines = (_BULLET.sub("", line).rstrip("` \t\r") for line in named.splitlines())
    return SaidAnswer(
        text=answer, sources=tuple(line for line in lines if line.startswith(("$", "/")))
    )
