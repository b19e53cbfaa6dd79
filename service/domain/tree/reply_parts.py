"""The parts of a reply: its reasoning, action, answer and sources, however it is written."""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from service.domain.prompting.thoughts import said

#: Characters of a reply that are read.
MAX_REPLY_CHARACTERS = 100_000
#: Objects of JSON that are looked at.
MAX_OBJECTS = 8

_NAMES = r"(?P<name>reasoning|reasons?|actions?|answer|sources?)"
# What repeats is bounded: a model that has lost its way writes blanks without end.
_DECORATION = r"[ \t>*#_`\"'•-]{0,16}(?:\d{1,2}[.)][ \t*_`\"']{0,8})?"
#: A part that begins a line: "Action: 2", "**Action:** 2", "- The final answer = …",
#: "Action 2", or "## Action" with what it names below.
_LABEL = re.compile(
    rf"^{_DECORATION}(?:(?:the|my|final|your)[ \t]){{0,2}}{_NAMES}[ \t]{{0,4}}"
    r"(?:[*_`\"']{0,3}[ \t]{0,4}[:=：][ \t]{0,8}(?:\*\*|__)?|(?=[-−–]?\d{1,6}[ \t.*]{0,8}$)"
    r"|[*_]{0,3}[ \t]{0,4}$)",
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


class Unclear(Exception):
    """A reply that says nothing that can be done; the message says why."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TreeReplyParts:
    """What stands behind the names, in the order of the reply; a name may stand twice."""

    reasoning: str
    actions: tuple[str, ...] = ()
    answers: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    #: The part in which a reply is too long: "action", "answer" …; empty when it is whole.
    cut: str = ""


def split_reply(reply: str) -> TreeReplyParts:
    """The parts of a reply. Raises Unclear when it is empty."""
    is_long = len(reply) > MAX_REPLY_CHARACTERS
    text = _RULE.sub("", said(reply[:MAX_REPLY_CHARACTERS]))
    if not text.strip():
        raise Unclear("it is empty")
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
    """The part that goes on behind what is read."""
    if not named:
        return "reason"
    kind, part = named[-1]
    # The line of an action is whole when another one follows.
    return "reason" if kind == "action" and "\n" in part.strip() else kind


def _kind(name: str) -> str:
    """A name in its one form: reason, action, answer or source; empty for another."""
    name = name.strip().lower()
    short = name.removesuffix("ing").removesuffix("s")
    if short == "note":
        # Some providers refuse to be asked for "reasoning".
        return "reason"
    return short if short in ("reason", "action", "answer", "source") else ""


class _Pairs(list[tuple[str, Any]]):
    """An object of JSON as it is written: a name may stand twice."""


_JSON = json.JSONDecoder(object_pairs_hook=_Pairs)


def _objects(text: str) -> Iterator[tuple[str, str]]:
    """The parts that objects of JSON in the text name."""
    at = 0
    for _ in range(MAX_OBJECTS):
        at = text.find("{", at)
        if at < 0:
            return
        try:
            value, end = _JSON.raw_decode(text, at)
            parts = [(kind, _kept(_written(part))) for name, part in value if (kind := _kind(name))]
        except (ValueError, RecursionError):
            # No JSON, or none that a reply would have: it is text, like the rest.
            at += 1
            continue
        at = end
        if any(kind in ("action", "answer") for kind, _ in parts):
            yield from parts


def _written(value: object) -> str:
    """A value of JSON as the text form has it."""
    match value:
        case str():
            return value
        case None:
            return ""
        case _Pairs():
            return json.dumps(dict(value), ensure_ascii=False)
        case list():
            return ", ".join(_written(one) for one in value)
        case float() if value.is_integer():
            return str(int(value))
    return str(value)


def _kept(text: str) -> str:
    """A text of JSON without what its escapes can say and no database keeps."""
    return text.replace("\0", "").encode(errors="replace").decode()


def _labelled(text: str) -> Iterator[tuple[str, str]]:
    """The parts of a text that has their names before them."""
    labels = list(_LABEL.finditer(text))
    known = {_kind(label["name"]) for label in labels}
    labels += [label for label in _INLINE.finditer(text) if _kind(label["name"]) not in known]
    labels.sort(key=lambda label: label.start())
    if labels and "reason" not in known | {_kind(label["name"]) for label in labels}:
        yield "reason", text[: labels[0].start()]
    for label, following in zip_longest(labels, labels[1:]):
        end = following.start() if following else len(text)
        yield _kind(label["name"]), text[label.end() : end]


def _bare(text: str) -> Iterator[tuple[str, str]]:
    """The move of a text that names no part: its last line, when that is nothing else."""
    head, _, last = text.strip().rpartition("\n")
    if found := _BARE.match(last):
        yield "reason", head
        yield "action", found["move"]
