"""Reads replies of models: JSON with words around it, parts with names, lists, and prose.

Every method reads its replies with this module and its neighbours: `thoughts` (what stands
before a reply), `sections` (answers with their sources) and `literals` (values). A reply comes
from a model: whatever is in it, reading raises nothing but what a function names, and its cost
is bounded by the limits below and those of `literals`.
"""

import json
import re
from collections.abc import Iterable, Iterator, Sequence

from service.domain.prompting.literals import LiteralError, LiteralTooLarge, Pairs, bare, reader_of
from service.domain.prompting.thoughts import said, said_so_far
from service.domain.values.json_values import Json

#: Characters of a reply that are read.
MAX_REPLY_CHARACTERS = 100_000
#: Characters of a reply that revises a whole memory.
MAX_REVISION_CHARACTERS = 1_000_000
#: Objects and lists of JSON that are looked for in a reply with words around them.
MAX_VALUES_IN_TEXT = 8

# What repeats is bounded: a model that has lost its way writes blanks without end.
#: What models write before the name of a part, at the start of a line …
BEFORE_NAME = r"[ \t>*#_`\"'•\[-]{0,16}"
#: … and after it.
AFTER_NAME = r"[ \t*_`\"'\]]{0,8}[:=：][ \t]{0,8}(?:\*\*|__)?"

#: Signs around a text …
_SIGNS = ("```", "**", "`", '"')
#: … of which this one may lack its first half: it stood before the name of the part.
_BOLD = "**"
_FENCE = re.compile(r"[ \t]{0,16}(?:`{3,}|~{3,})(.{0,80})")
#: A string of JSON as far as it can be read.
_UNITS = re.compile(r'(?:[^"\\]|\\u[0-9a-fA-F]{4}|\\["\\/bfnrt])*')
#: What matters of JSON, and what begins it.
_MARKS = re.compile(r'["{}\[\]:,]')
_OPENS = re.compile(r"\{")


def storable(text: str) -> str:
    """Returns a text without what no database keeps: NUL, and halves of surrogate pairs."""
    return text.replace("\0", "").encode(errors="replace").decode()


def unmarked(text: str) -> str:
    """Returns a text without blanks and the signs around all of it that only set it off."""
    text = text.strip()
    for sign in _SIGNS:
        inner = text.removeprefix(sign).removesuffix(sign)
        is_around = len(text) - len(inner) == 2 * len(sign)
        if (is_around or (sign == _BOLD and text.endswith(sign))) and sign not in inner:
            text = inner.strip()
    return text


def prose(reply: str, heading: str) -> str:
    """Returns the text of a reply without thoughts, and without a heading before it.

    `heading` is a pattern of titles that some models write although the prompt forbids them.
    """
    text = said(reply).strip()
    found = re.match(rf"[#*\[ ]{{0,8}}(?:{heading})[\]*]{{0,3}} ?(?::\*{{0,2}}|\n)\s*", text, re.I)
    return text[found.end() :] if found and found.end() < len(text) else text


def fenced(lines: Sequence[str]) -> Iterator[range]:
    """Yields the lines within each code fence; one that is not closed reaches to the end."""
    begins: int | None = None
    for number, line in enumerate(lines):
        fence = _FENCE.match(line)
        if fence is None:
            continue
        if begins is not None:
            yield range(begins, number)
        # A fence that names a language opens one, whatever was open before.
        begins = number + 1 if begins is None or fence[1].strip() else None
    if begins is not None:
        yield range(begins, len(lines))


def parts_after(text: str, labels: Iterable[re.Match[str]]) -> Iterator[tuple[str, str]]:
    """Yields the `name` of each label, in lower case, with the text up to the next label."""
    name, start = "", 0
    for label in labels:
        if name:
            yield name, text[start : label.start()]
        name, start = label["name"].lower(), label.end()
    if name:
        yield name, text[start:]


def json_values(text: str, begins: str = "{") -> Iterator[object]:
    """Yields the values of JSON in a text that begin with one of some brackets.

    They are as `literals` reads them: with single quotes, trailing commas and comments as well.
    """
    reader, at = reader_of(text, joins_strings=False), 0
    opening = re.compile(f"[{re.escape(begins)}]")
    for _ in range(MAX_VALUES_IN_TEXT):
        found = opening.search(text, at)
        if found is None:
            return
        reader.at = found.start()
        try:
            value = reader.value()
        except LiteralTooLarge:
            return
        except LiteralError:
            # No JSON: it is text, like the rest.
            at = found.end()
            continue
        at = reader.at
        yield value


def json_objects(text: str) -> Iterator[list[tuple[str, Json]]]:
    """Yields the objects of JSON in a text: their pairs, with the names in lower case.

    A name may be there twice. A value that JSON does not have is left out.
    """
    for value in json_values(text):
        if isinstance(value, Pairs):
            yield list(_named(value))


def _named(value: Pairs) -> Iterator[tuple[str, Json]]:
    for name, child in value.pairs:
        try:
            yield str(name).strip().lower(), bare(child)
        except ValueError:
            continue


def written(value: Json, joint: str = "\n") -> str:
    """Returns a value of JSON as the text form of a reply has it, without what no database keeps.

    The items of a list have `joint` between them.
    """
    match value:
        case None:
            return ""
        case str():
            return storable(value)
        case list():
            return joint.join(written(one, joint) for one in value)
        case float() if value.is_integer():
            return str(int(value))
    return storable(json.dumps(value, ensure_ascii=False))


def json_text_so_far(reply: str, name: str = "answer") -> str:
    """Returns the string under a name of an object of JSON in an unfinished reply.

    The object is in no other. Empty as long as the string is not there, and when what is there
    is no string.
    """
    text = said_so_far(reply)
    at: int | None = _next(_OPENS, text, 0)
    depth, key, expects = 0, "", False
    while at is not None:
        if text[at] == '"':
            string, end = _string_so_far(text, at + 1)
            if expects and key == name:
                return string.strip()
            if end is None:
                return ""
            key = string if depth == 1 else key
            at = _next(_MARKS, text, end)
            continue
        depth += (text[at] in "{[") - (text[at] in "}]")
        expects = text[at] == ":" and depth == 1
        at = _next(_MARKS if depth else _OPENS, text, at + 1)
    return ""


def _next(marks: re.Pattern[str], text: str, start: int) -> int | None:
    found = marks.search(text, start)
    return None if found is None else found.start()


def _string_so_far(text: str, start: int) -> tuple[str, int | None]:
    """Returns a string of JSON from after its first quote, and its end; None: not yet there."""
    units = _UNITS.match(text, start)
    assert units is not None, "it matches nothing, too"
    value: str = json.loads(f'"{units[0]}"', strict=False)
    end = units.end()
    if text.startswith('"', end):
        return storable(value), end + 1
    # Half of a pair of surrogates waits for its other half.
    return storable(value[:-1] if "\ud800" <= value[-1:] <= "\udbff" else value), None
