"""The values of a reply's parts: numbers of an action, an answer, the option it means."""

import re
from collections.abc import Sequence

from service.domain.answers.options import normal
from service.domain.tree.reply_parts import Unclear

#: What may stand before a number: "Action: enter summary 2".
_WORDS = (
    r"(?:(?:i|we|go|going|to|into|back|up|enter|choose|select|read|open|take|pick|revert|reply|"
    r"action|the|is|summary|summaries|passages?|parts?|nodes?|child|children|number|numbers|"
    r"option|answer|sources?|with)\b[ \t.:]{0,3}){0,8}"
)
_OPENING = r"[ \t(\[{*`\"'<#_]{0,8}"
_INTEGER = r"(?P<number>(?:[-−–—][ \t]?)?\d{1,6})(?!\w|\.\d)"
_CLOSING = r"[ \t)\]}*`\"'>_]{0,8}"
_FIRST = re.compile(_OPENING + _WORDS + _OPENING + _INTEGER + _CLOSING, re.IGNORECASE)
#: A further number: "0, 2", "0 / 2", "0 and summary 2", "0 2".
_FURTHER = re.compile(
    r"(?:[,;/|&+:-]|\.{2,3}|…|or\b|and\b|to\b|then\b|"
    r"(?<=[ \t]))" + _OPENING + _WORDS + _OPENING + _INTEGER + _CLOSING,
    re.IGNORECASE,
)
_MINUS = str.maketrans("−–—", "---")

_LETTER = re.compile(
    r"^(?i:(?:the|my|answer|option|choice|correct|final|is)[ \t:]{1,3}){0,6}"
    r"(?:[(\[]([A-Za-z])[)\]]|([A-Za-z])\)|([A-Z])(?:[.:\]]|[ \t]{0,4}$|[ \t]{1,4}[-–—][ \t]))"
)


def numbers_of(part: str) -> tuple[int, ...]:
    """The numbers that a part names, as its first line has them; empty when it names none.

    "2", "Summary 2.", "[2]", "enter summary 2 because …", "0, 2". What only mentions a
    number ("not 2", "2.5") names none.
    """
    line = next((one for one in part.splitlines() if one.strip(" \t*_`#>")), "")
    found = _FIRST.match(line)
    numbers: list[int] = []
    while found:
        numbers.append(int(found["number"].translate(_MINUS).replace(" ", "").replace("\t", "")))
        found = _FURTHER.match(line, found.end())
    return tuple(numbers)


def said_answer(part: str) -> str:
    """An answer without the signs that only set it off; empty when nothing is said."""
    text = part.strip()
    for sign in ("**", "__", "`", '"'):
        inner = text.removeprefix(sign).removesuffix(sign)
        if inner != text and sign not in inner:
            text = inner.strip()
    return text if text.strip(" .…*_`\"'-?") else ""


def letter_of(number: int) -> str:
    """The letter of an option, by its number from 0."""
    return chr(ord("A") + number)


def chosen_option(answer: str, options: Sequence[str]) -> str:
    """The option that an answer means, by its letter or its text. Raises Unclear."""
    said = normal(answer)
    by_text = {option for option in options if normal(option) == said}
    by_letter: set[str] = set()
    letter = _LETTER.match(answer)
    if letter:
        number = ord((letter[1] or letter[2] or letter[3]).upper()) - ord("A")
        by_letter = set(options[number : number + 1])
        rest = normal(answer[letter.end() :])
        others = {option for option in options if rest and normal(option) == rest}
        if others and not others & by_letter:
            raise Unclear("its answer has the letter of one option and the text of another")
    meant = by_text | by_letter
    if len(meant) > 1:
        raise Unclear("its answer may mean two options; write letter and text of one")
    if not meant:
        raise Unclear("its answer is none of the options; write letter and text of one")
    return meant.pop()
