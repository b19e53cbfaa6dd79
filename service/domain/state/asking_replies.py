"""Reading a model's reply to a question about a working context."""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator
from string import digits

from service.domain.answers.reply_streaming import section_text
from service.domain.prompting.asking import SaidAnswer
from service.domain.prompting.no_answers import is_blank, may_say_none, says_none
from service.domain.prompting.thoughts import behind_unopened, is_thought, spoken

#: Characters of a reply that are read.
MAX_REPLY_CHARACTERS = 100_000

# What repeats is bounded: a pattern that can begin at each of many blanks takes quadratic
# time.
_BLANKS = r"[ \t]{0,16}"
_MARKUP = r"[*#_`]{0,4}"
_FLAGS = re.IGNORECASE | re.MULTILINE
#: As it is asked for, and as weak models write it.
_ANSWER = re.compile(rf"^{_BLANKS}{_MARKUP}\[{_BLANKS}ANSWER{_BLANKS}\]{_MARKUP}:?", _FLAGS)
_LOOSE_ANSWER = re.compile(
    rf"^{_BLANKS}{_MARKUP}{_BLANKS}(?:the )?(?:final )?answer{_MARKUP}:{_MARKUP}", _FLAGS
)
_STEPS = re.compile(rf"^{_BLANKS}{_MARKUP}\[{_BLANKS}STEPS?{_BLANKS}\]{_MARKUP}:?", _FLAGS)
_LOOSE_STEPS = re.compile(
    rf"^{_BLANKS}{_MARKUP}{_BLANKS}(?:steps?|positions?|sources?){_MARKUP}:{_MARKUP}", _FLAGS
)
#: What stands behind a loose header of steps, where it is one. Digits are never given back: a
#: number can be cut into two in each of its places, which takes exponential time.
_ONLY_POSITIONS = re.compile(
    r"(?:\d{1,19}+|steps?|and|to|none|[\s,;&#*•.\[\]()–—-]){0,400}+", re.IGNORECASE
)
#: Positions with something between them, where a line begins or behind the word. What cannot
#: be a digit is never given back: lines without one would be looked at eight times each.
_RUN = re.compile(
    r"(?:^[\s#*•\[(-]{0,8}+(?:\d{1,2}[.)][ \t]{1,4})??|\bsteps?+\b[\s#:\[(]{0,8}+)"
    r"(?:steps?+[ \t#]{0,4}+)?+"
    r"(\d{1,19}(?:(?:[ \t]{0,4}(?:,|;|&|-|–|—|\band\b|\bto\b)){1,2}[ \t#]{0,4}\d{1,19}){0,100})"
    r"(?!\d|[.)][ \t]{1,4}(?:step|\d))",
    _FLAGS,
)
_POSITIONS = re.compile(r"(\d+)(?:[ \t]*(?:-|–|—|to)[ \t#]*(\d+))?")
#: A last line that may become a loose header of steps.
_MAYBE_STEPS = re.compile(rf"{_BLANKS}{_MARKUP}{_BLANKS}([a-z]{{1,9}}){_MARKUP}\Z", re.IGNORECASE)
_STEPS_WORDS = ("steps", "positions", "sources")
#: What stands between positions, as far as it may be there.
_BETWEEN = re.compile(r"(?:s|st|ste|a|an|t|n|no|non)?\Z", re.IGNORECASE)


def read_answer(reply: str, known: Collection[int], is_cut: bool = False) -> SaidAnswer[int] | None:
    """The answer of a reply and the positions that it names; None when it has none.

    Positions that are not `known` are dropped. Without the sections that are asked for,
    the whole reply is the answer. `is_cut`: the reply lacks its end; a number there may be
    the beginning of another.
    """
    text = _bare(reply)
    begins = _ANSWER.search(text) or _LOOSE_ANSWER.search(text)
    if begins is None:
        text = behind_unopened(text)
    start = begins.end() if begins else 0
    steps = _steps(text, start)
    answer = text[start : steps.start() if steps else len(text)].strip()
    if is_blank(answer):
        return None
    if says_none(answer):
        return SaidAnswer(text="")
    if steps is None:
        return SaidAnswer(text=answer, is_cut=is_cut)
    named = text[steps.end() :]
    if is_cut:
        named = named.rstrip(digits)
    return SaidAnswer(text=answer, sources=tuple(_named(named, frozenset(known))))


def told_answer(reply: str) -> str:
    """What of an unfinished reply is the answer, as `read_answer` will find it.

    Of a reply without the header that was asked for nothing: what its answer is shows at
    its end. Nothing either of what says, or may come to say, that there is no answer.
    """
    text = section_text(reply[:MAX_REPLY_CHARACTERS], _ANSWER, _STEPS, last=True)
    said = _without_loose_steps(text)
    return "" if may_say_none(said) else said


def _without_loose_steps(text: str) -> str:
    """A text without an end that is, or may become, a loose header with positions."""
    for match in reversed([*_LOOSE_STEPS.finditer(text)]):
        if any(
            _BETWEEN.match(text, end) and _ONLY_POSITIONS.fullmatch(text, match.end(), end)
            for end in range(max(len(text) - 3, match.end()), len(text) + 1)
        ):
            return text[: match.start()].rstrip()
    line = text.rfind("\n") + 1
    found = _MAYBE_STEPS.match(text, line)
    if found is not None and _may_become(found[1], _STEPS_WORDS):
        return text[:line].rstrip()
    return text


def _may_become(text: str, ones: Collection[str]) -> bool:
    # Folded once, and no more of it than there is to compare: a text may be long.
    begin = text[: max(map(len, ones)) + 1].casefold()
    return any(one.startswith(begin) for one in ones)


def _bare(reply: str) -> str:
    """A reply without thoughts before it."""
    text = spoken(reply[:MAX_REPLY_CHARACTERS])
    # Thoughts without an end are no answer.
    return "" if is_thought(text) else text


def _steps(text: str, start: int) -> re.Match[str] | None:
    """The header before the positions: the last one, since an answer may have such a line."""
    found = None
    for match in _STEPS.finditer(text, start):
        found = match
    if found is None:
        for match in _LOOSE_STEPS.finditer(text, start):
            found = match
        if found is not None and not _ONLY_POSITIONS.fullmatch(text, found.end()):
            found = None
    return found


def _named(text: str, known: Collection[int]) -> Iterator[int]:
    """The known positions that a text names, each once."""
    left = sorted(known)
    for run in _RUN.finditer(text):
        for match in _POSITIONS.finditer(run[1]):
            first = int(match[1])
            # A run may be named by numbers that nobody has.
            begin, end = bisect_left(left, first), bisect_right(left, int(match[2] or first))
            yield from left[begin:end]
            # So that many runs that name everything cost no more than one.
            del left[begin:end]
