"""Finds the text of an answer in a reply that is still being written.

Each function here takes a reply as far as it is there. What it gives only grows while the
reply grows: the marks around an answer, and what may become one, are held back until it is
known what they are. What a reader makes of the whole reply may differ (a reply without the
marks that were asked for); then `following` begins anew.
"""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass

from service.domain.prompting.thoughts import is_thought

#: Characters of a piece at most: with four bytes each, 4 KiB.
PIECE_CHARACTERS = 1024

# What repeats is bounded: a model that has lost its way writes blanks without end.
_BLANKS = r"[ \t]{0,16}"
_MARKUP = r"[*#_`]{0,4}"
#: A last line that may become a header, or is one that is not closed yet; names have at most
#: 16 characters.
_MAYBE_HEADER = re.compile(
    rf"{_BLANKS}{_MARKUP}(?:\[[^\]\n]{{0,48}}(?:\]{_MARKUP}{_BLANKS}:?)?)?\Z"
)
_THOUGHT_END = re.compile(r"</think(?:ing)?>[ \t]{0,16}\n")
_THOUGHT_MARK = "</think"
#: A string of JSON as far as it can be read.
_UNITS = re.compile(r'(?:[^"\\]|\\u[0-9a-fA-F]{4}|\\["\\/bfnrt])*')
#: What matters of JSON, and what begins it.
_MARKS = re.compile(r'["{}\[\]:,]')
_OPENS = re.compile(r"\{")


@dataclass(frozen=True, kw_only=True, slots=True)
class TextPiece:
    """A piece of an answer's text, as it is streamed while it is written."""

    #: 1, 2, 3 … within the answer.
    ordinal: int
    #: What follows the pieces before it; at most PIECE_CHARACTERS.
    text: str
    #: What was streamed before is void: the text begins with this piece.
    restarts: bool = False


def text_of(pieces: Iterable[TextPiece]) -> str:
    """Returns the text of pieces in their order."""
    streamed: list[str] = []
    for piece in pieces:
        if piece.restarts:
            streamed.clear()
        streamed.append(piece.text)
    return "".join(streamed)


def following(last: int, streamed: str, wanted: str) -> tuple[TextPiece, ...]:
    """Returns the pieces after the `last` one that turn `streamed` into `wanted`."""
    if wanted == streamed:
        return ()
    restarts = not wanted.startswith(streamed)
    rest = wanted if restarts else wanted[len(streamed) :]
    parts = [rest[at : at + PIECE_CHARACTERS] for at in range(0, len(rest), PIECE_CHARACTERS)]
    return tuple(
        TextPiece(ordinal=last + number, text=part, restarts=restarts and number == 1)
        for number, part in enumerate(parts or [""], 1)
    )


def header(*names: str) -> re.Pattern[str]:
    """A header that begins a line, as prompts ask for it: [NAME], in any case, with markup.

    Names have at most 16 characters.
    """
    one = "|".join(re.escape(name) for name in names)
    return re.compile(
        rf"^{_BLANKS}{_MARKUP}\[{_BLANKS}(?:{one}){_BLANKS}\]{_MARKUP}[ \t]{{0,4}}:?",
        re.IGNORECASE | re.MULTILINE,
    )


def section_text(
    reply: str, begins: re.Pattern[str], ends: re.Pattern[str], *, last: bool = False
) -> str:
    """The text behind a header of an unfinished reply, up to the header that follows.

    Empty as long as the first header is not there. `begins` and `ends` match headers that
    begin lines, as `header` makes them; with `last` the last of `ends` ends it, else the
    first.
    """
    text = spoken_so_far(reply)
    begin = begins.search(text)
    # A header at the very end may still go on.
    if begin is None or begin.end() == len(text):
        return ""
    found = list(ends.finditer(text, begin.end()))
    if found:
        return text[begin.end() : found[-1 if last else 0].start()].strip()
    return without_header(text, begin.end()).strip()


def without_header(text: str, start: int) -> str:
    """The text from `start`, without a last line that may become a header."""
    line = text.rfind("\n") + 1
    if line > start and _MAYBE_HEADER.match(text, line):
        return text[start:line]
    return text[start:]


def json_text(reply: str, name: str = "answer") -> str:
    """The string under a name of an object of JSON in an unfinished reply.

    Of an object that is in no other. Empty as long as it is not there, and when what is
    there is no string.
    """
    text = spoken_so_far(reply)
    at: int | None = _next(_OPENS, text, 0)
    depth, key, expects = 0, "", False
    while at is not None:
        if text[at] == '"':
            string, end = _string(text, at + 1)
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


def _string(text: str, start: int) -> tuple[str, int | None]:
    """A string of JSON from behind its first quote, and where it ends; None: not yet."""
    units = _UNITS.match(text, start)
    assert units is not None, "it matches nothing, too"
    value: str = json.loads(f'"{units[0]}"', strict=False)
    end = units.end()
    if not text.startswith('"', end):
        # Half of a pair of surrogates waits for its other half.
        if value and "\ud800" <= value[-1] <= "\udbff":
            value = value[:-1]
        return _kept(value), None
    return _kept(value), end + 1


def _kept(text: str) -> str:
    """A text without what escapes can say and no database keeps."""
    return text.replace("\0", "").encode(errors="replace").decode()


def spoken_so_far(reply: str) -> str:
    """An unfinished reply without the thoughts that it begins with.

    Empty within them. Where thoughts end again it stops: what is before would be void.
    """
    if not is_thought(reply):
        return reply
    end = _THOUGHT_END.search(reply)
    if end is None:
        return ""
    text, again, _ = reply[end.end() :].partition(_THOUGHT_MARK)
    return text if again else _without_start_of(_THOUGHT_MARK, text)


def _without_start_of(mark: str, text: str) -> str:
    """A text without an end that may become `mark`."""
    for size in range(min(len(mark) - 1, len(text)), 0, -1):
        if text.endswith(mark[:size]):
            return text[:-size]
    return text
