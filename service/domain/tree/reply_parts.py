"""The parts of a reply: its reasoning, action, answer and sources, however it is written.

And what is in them: the numbers of an action, the words of an answer.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from service.domain.prompting.asking import Unusable
from service.domain.prompting.replies import (
    AFTER_NAME,
    BEFORE_NAME,
    MAX_REPLY_CHARACTERS,
    json_objects,
    parts_after,
    unmarked,
    written,
)
from service.domain.prompting.thoughts import said

_NAMES = r"(?P<name>reasoning|reasons?|actions?|answer|sources?)"
#: A part that begins a line: "Action: 2", "**Action:** 2", "- The final answer = …",
#: "Action 2", or "## Action" with what it names below.
_LABEL = re.compile(
    rf"^{BEFORE_NAME}(?:\d{{1,2}}[.)][ \t*_`\"']{{0,8}})?"
    rf"(?:(?:the|my|final|your)[ \t]){{0,2}}{_NAMES}(?:{AFTER_NAME}"
    r"|[ \t]{0,4}(?:(?=[-−–]?\d{1,6}[ \t.*]{0,8}$)|[*_]{0,3}[ \t]{0,4}$))",
    re.IGNORECASE | re.MULTILINE,
)
#: A part within a line, where no line begins with it: written exactly as it is asked for.
_INLINE = re.compile(r"(?<=[\s.;,|])(?P<name>Reasoning|Actions?|Answer|Sources?)[ \t]{0,2}:")
#: A whole line that is nothing but a move.
_BARE = re.compile(
    r"^[ \t>*#_`\"'(\[-]{0,16}?(?:(?:summary|passage|part|number|option|choice)[ \t]{1,4}){0,2}"
    r"(?P<move>[-−–]?[ \t]?\d{1,6})[ \t.*_`\"')\]]{0,16}$",
    re.IGNORECASE,
)
_RULE = re.compile(r"^[ \t]{0,16}[#=*_`~-]{3,}[ \t]{0,16}(?:json|text)?$", re.MULTILINE)
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


@dataclass(frozen=True, kw_only=True, slots=True)
class TreeReplyParts:
    """What stands after the names, in the order of the reply; a name may stand twice."""

    reasoning: str
    actions: tuple[str, ...] = ()
    answers: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    #: The part in which a reply is too long: "action", "answer" …; empty when it is whole.
    cut: str = ""


def split_reply(reply: str) -> TreeReplyParts:
    """Returns the parts of a reply. Raises Unusable when it is empty."""
    is_long = len(reply) > MAX_REPLY_CHARACTERS
    text = _RULE.sub("", said(reply[:MAX_REPLY_CHARACTERS]))
    if not text.strip():
        raise Unusable("it is empty")
    named = list(_objects(text)) or list(_labelled(text)) or list(_bare(text))

    def of(kind: str) -> tuple[str, ...]:
        return tuple(part for name, part in named if name == kind)

    return TreeReplyParts(
        reasoning="\n".join(part.strip() for part in of("reason")).strip(),
        actions=of("action"),
        answers=of("answer"),
        sources=of("source"),
        cut=_cut(named) if is_long else "",
    )


def _cut(named: Sequence[tuple[str, str]]) -> str:
    """Returns the part that goes on after what is read."""
    if not named:
        return "reason"
    kind, part = named[-1]
    # The line of an action is whole when another one follows.
    return "reason" if kind == "action" and "\n" in part.strip() else kind


def _kind(name: str) -> str:
    """Returns a name in its one form: reason, action, answer or source; empty for another."""
    name = name.strip().lower()
    short = name.removesuffix("ing").removesuffix("s")
    if short == "note":
        # Some providers refuse to be asked for "reasoning".
        return "reason"
    return short if short in ("reason", "action", "answer", "source") else ""


def _objects(text: str) -> Iterator[tuple[str, str]]:
    """Yields the parts that objects of JSON in the text name."""
    for pairs in json_objects(text):
        parts = [(kind, written(part, ", ")) for name, part in pairs if (kind := _kind(name))]
        if any(kind in ("action", "answer") for kind, _ in parts):
            yield from parts


def _labelled(text: str) -> Iterator[tuple[str, str]]:
    """Yields the parts of a text that has their names before them."""
    labels = list(_LABEL.finditer(text))
    known = {_kind(label["name"]) for label in labels}
    labels += [label for label in _INLINE.finditer(text) if _kind(label["name"]) not in known]
    labels.sort(key=lambda label: label.start())
    if labels and "reason" not in known | {_kind(label["name"]) for label in labels}:
        yield "reason", text[: labels[0].start()]
    for name, part in parts_after(text, labels):
        yield _kind(name), part


def _bare(text: str) -> Iterator[tuple[str, str]]:
    """Yields the move of a text that names no part: its last line, when that is nothing else."""
    head, _, last = text.strip().rpartition("\n")
    if found := _BARE.match(last):
        yield "reason", head
        yield "action", found["move"]


def numbers_of(part: str) -> tuple[int, ...]:
    """Returns the numbers that a part names, as its first line has them; empty when it names none.

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
    """Returns an answer without the signs that only set it off; empty when nothing is said."""
    text = unmarked(part)
    return text if text.strip(" .…*_`\"'-?") else ""
