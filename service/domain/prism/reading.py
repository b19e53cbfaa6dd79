"""Reads the proposals of a reply, in whichever form it was written.

One form is asked for: a JSON object with a list of changes, each with its op, its path
and its value as JSON text. Others are read as well: sections of lines, each an object with
a path and its value (the PRISM paper's appendix D), and a JSON object with a list for each
op. All are read as models really write them, with talk around them, in fences, broken off at
the end; what is broken takes nothing else with it. Reading never raises.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from service.domain.prism.amendments import Op, Proposal, Rejection, rejected
from service.domain.prompting.literals import (
    LiteralError,
    LiteralReader,
    LiteralTooLarge,
    Pairs,
    plain,
    reader_of,
)
from service.domain.prompting.thoughts import spoken
from service.domain.values.json_values import Json, canonical

#: Objects of a reply that are read, empty ones included.
MAX_OBJECTS = 1000

# What repeats is bounded: a model that has lost its way writes blanks without end.
_HEADER = (
    r"^[ \t>*#_`.)\d-]{0,16}\[?[ \t]{0,4}(?i:OBJECTS?[ \t]{1,4}"
    r"(?:FOR|TO(?:[ \t]{1,4}BE)?)[ \t]{1,4}"
    r"(?P<op>UPDAT|ADD|REMOV|DELET)(?:E[SD]?|ING|ED|ITIONS?|ALS?|IONS?)?)\b[ \t]{0,4}\]?"
)
_OTHER = r"(?P<other>^[ \t]{0,16}\[[A-Z][A-Z _]{1,40}\][ \t]{0,16}$)"
_SECTION = re.compile(rf"{_HEADER}|{_OTHER}", re.MULTILINE)
#: Where a section ends or an object begins.
_NEXT = re.compile(rf"{_HEADER}|{_OTHER}|(?P<object>\{{)", re.MULTILINE)
#: Where reading goes on after an object that is broken: a line with a new one.
_RESTART = re.compile(
    rf"{_HEADER}|{_OTHER}|(?P<object>^[ \t`*,\[-]{{0,16}}\{{[ \t]{{0,4}}[\"'][ \t]{{0,4}}[$/])",
    re.MULTILINE,
)
#: Where reading goes on within an object: a line with a new path.
_ENTRY = re.compile(r"^[ \t,]{0,64}(?=[\"'][ \t]{0,4}[$/])", re.MULTILINE)
#: Where reading goes on within a list of changes: a line with the next, or the next list.
#: Never within a line: what stands there may be a broken string's.
_ITEM = re.compile(
    r"^[ \t,]{0,64}(?:(?P<item>\{\s{0,64}[\"'](?:path|op)[\"']\s{0,16}:)"
    r"|[\"'](?:add|update|remove|changes)[\"']\s{0,16}:\s{0,16}\[)",
    re.MULTILINE,
)
#: What comes next in a list of paths, after bullets, numbers, brackets and quotes of code.
_REMOVAL = re.compile(
    r"[ \t>*+•`,;\[\]-]{0,64}(?:\d{1,6}[.)][ \t`]{0,8})?"
    r"(?:(?P<object>\{)|(?P<string>[\"'])|(?P<path>[$/][^\n]*+)|[^\n]*+\n{0,64}+)"
)

_OPS = {
    "add": Op.ADD,
    "update": Op.UPDATE,
    "replace": Op.UPDATE,
    "remove": Op.REMOVE,
    "delete": Op.REMOVE,
}
#: The key of the list that holds changes of every op.
_CHANGES = "changes"
#: What a section says in which nothing is to be changed.
_EMPTY_SECTION = re.compile(
    r"[\s`]{0,64}(?:json)?[\s`]{0,64}"
    r"(?:\{\s{0,16}\}|\[\s{0,16}\]|\(?(?:none|nothing|no changes?|n/a)\)?\.?)?[\s`]{0,64}",
    re.IGNORECASE,
)
_HEADERS = {"add": Op.ADD, "updat": Op.UPDATE, "remov": Op.REMOVE, "delet": Op.REMOVE}
#: What stands for "yes, remove it" where a value would stand.
_NOTHING: tuple[Json, ...] = (None, True, "", [], {})

_Found = Proposal | Rejection


class UnreadRemoval(Rejection):
    """A removal that could not be read: nothing is lost when it is not made."""


def read_proposals(text: str) -> Iterator[_Found]:
    """Yields every path and value of the reply, in order. Never raises."""
    return iter(_Reply(spoken(text)).read())


def says_nothing_changes(text: str) -> bool:
    """Returns whether a reply in which there is no proposal says so, in one of the forms."""
    reply = _Reply(spoken(text))
    return not reply.read() and (reply.has_empty_list or _are_empty_sections(reply.text))


def _are_empty_sections(text: str) -> bool:
    """Returns whether there are headers of sections, and nothing in any of them."""
    headers = [found for found in _SECTION.finditer(text) if found["op"]]
    ends = [*(found.start() for found in headers[1:]), len(text)]
    return bool(headers) and all(
        _EMPTY_SECTION.fullmatch(_unheaded(text[found.end() : end]))
        for found, end in zip(headers, ends, strict=True)
    )


def _unheaded(section: str) -> str:
    """Returns a section without the colon and stars that its header may end with."""
    return section.lstrip(" \t*_`:")


@dataclass(frozen=True, slots=True)
class _Changes:
    """A list of changes, read."""

    found: list[_Found]


@dataclass(frozen=True, slots=True)
class _Entry:
    """One pair of an object."""

    key: object
    value: object
    #: As it was written.
    text: str


@dataclass(slots=True)
class _Reply:
    """One reply being read."""

    text: str
    reader: LiteralReader = field(init=False)
    #: Objects read, and broken parts of objects.
    objects: int = 0
    #: The line where the next object begins, as far as it was looked for.
    restart: int = 0
    #: A list of changes was there, and nothing in it.
    has_empty_list: bool = False

    def __post_init__(self) -> None:
        self.reader = reader_of(self.text)

    def read(self) -> list[_Found]:
        """Returns everything that counts."""
        loose: list[_Found] = []
        headed: list[_Found] = []
        has_header = False
        op: Op | None = None
        try:
            while found := _NEXT.search(self.text, self.reader.at):
                self.reader.at = found.end()
                if found["object"] and (op or not has_header):
                    self.reader.at = found.start()
                    (headed if has_header else loose).extend(self._object(op))
                elif not found["object"]:
                    op = _HEADERS[found["op"].lower()] if found["op"] else None
                    has_header = has_header or op is not None
                    if op is Op.REMOVE:
                        headed.extend(self._removals())
        except LiteralTooLarge as error:
            (headed if has_header else loose).append(rejected(self.text[error.at :], str(error)))
        # With sections, objects before them are talk, or thoughts.
        return headed if has_header else loose

    def _object(self, op: Op | None) -> list[_Found]:
        """Reads the object at the reader's place, and moves the reader after it."""
        start = self.reader.at
        if self._is_too_much():
            return self._stop(start)
        entries: list[_Entry] = []
        broken: list[_Found] = []
        self.reader.at += 1
        while True:
            self.reader.blank()
            at = self.reader.at
            try:
                if self.reader.peek("}") or not self._entry(entries, op):
                    break
            except LiteralTooLarge:
                raise
            except LiteralError as error:
                self.reader.at, goes_on = self._behind(start, at)
                text = self.text[at if entries else start : self.reader.at]
                broken.append(rejected(text, str(error)))
                if not goes_on or self._is_too_much():
                    break
        return [*_said(entries, op), *broken]

    def _stop(self, at: int) -> list[_Found]:
        """Reads no further."""
        self.reader.at = len(self.text)
        return [rejected(self.text[at:], f"a reply has at most {MAX_OBJECTS} objects")]

    def _is_too_much(self) -> bool:
        """Counts an object, or a broken part of one."""
        self.objects += 1
        return self.objects > MAX_OBJECTS

    def _entry(self, entries: list[_Entry], op: Op | None) -> bool:
        """Reads a pair into `entries`; whether another may follow. Raises LiteralError."""
        reader, at = self.reader, self.reader.at
        key = reader.key()
        if not reader.peek(":"):
            reader.fail("no colon behind a key")
        reader.blank()
        if _is_list(key) and self.text.startswith("[", reader.at):
            items = self._items(_op_of(key))
            self.has_empty_list = self.has_empty_list or not items
            entries.append(_Entry(key, _Changes(items), ""))
            # Its items have said already what is wrong with it.
            return not reader.peek("}") and (reader.peek(",") or reader.at < len(self.text))
        value = reader.value()
        end = reader.at
        # Before that it is not sure that the value is whole.
        closed = reader.comma_or("}")
        entries.append(_Entry(key, value, self.text[at:end]))
        return not closed

    def _items(self, op: Op | None) -> list[_Found]:
        """Reads a list of changes, of one op or each with its own; the reader moves past it."""
        found: list[_Found] = []
        self.reader.at += 1
        while True:
            self.reader.blank()
            at = self.reader.at
            try:
                if self.reader.peek("]"):
                    return found
                item = self.reader.value()
                found.append(_item(item, self.text[at : self.reader.at], op))
                if self.reader.comma_or("]"):
                    return found
            except LiteralTooLarge:
                raise
            except LiteralError as error:
                # What is cut off has nothing after it.
                cut = error.at >= len(self.text) or self._is_too_much()
                following = None if cut else _ITEM.search(self.text, at + 1)
                end = following.start() if following else len(self.text)
                found.append(rejected(self.text[at:end], str(error)))
                self.reader.spend(end - at)
                self.reader.at = end
                self.reader.peek(",")
                if not following or not following["item"]:
                    return found

    def _behind(self, start: int, at: int) -> tuple[int, bool]:
        """Returns where reading goes on when the object from `start` is broken after `at`.

        And whether that is still within the object.
        """
        at = max(at, start + 1)
        if self.restart < at:
            # Kept for the objects up to it: looking anew for each takes too long.
            line = _RESTART.search(self.text, at)
            self.restart = line.start() if line else len(self.text)
        entry = _ENTRY.search(self.text, at + 1, self.restart)
        return (entry.end(), True) if entry else (self.restart, False)

    def _removals(self) -> list[_Found]:
        """Reads the paths of a section of removals; the reader moves to its end."""
        found: list[_Found] = []
        while (at := self.reader.at) < len(self.text) and not _SECTION.match(self.text, at):
            removal = _REMOVAL.match(self.text, at)
            assert removal is not None, "it matches any text"
            self.reader.spend(removal.end() - at)
            self.reader.at = removal.end()
            if removal["path"]:
                path = removal["path"].rstrip(" \t\r`,;")
                found.append(Proposal(path, Op.REMOVE, None))
            elif removal["object"]:
                self.reader.at -= 1
                found += self._object(Op.REMOVE)
            elif removal["string"]:
                self.reader.at -= 1
                try:
                    found.append(Proposal(self.reader.one_string(), Op.REMOVE, None))
                except LiteralTooLarge:
                    raise
                except LiteralError:
                    # It is talk, up to the end of its line.
                    self.reader.at = self.text.find("\n", at) + 1 or len(self.text)
        return found


def _op_of(key: object) -> Op | None:
    return _OPS.get(key.strip().lower()) if isinstance(key, str) else None


def _is_list(key: object) -> bool:
    """Returns whether the key is that of a list of changes."""
    return _op_of(key) is not None or (isinstance(key, str) and key.strip().lower() == _CHANGES)


def _is_place(key: object) -> bool:
    return isinstance(key, str) and key.lstrip()[:1] in ("$", "/")


def _said(entries: list[_Entry], op: Op | None) -> Iterator[_Found]:
    """Yields what the pairs of one object propose."""
    named = {entry.key: entry.value for entry in entries if isinstance(entry.key, str)}
    if _is_place(named.get("path")):
        yield _change(named, op, ",".join(entry.text for entry in entries))
        return
    has_changes = any(isinstance(one.value, _Changes) and not _op_of(one.key) for one in entries)
    for entry in entries:
        stated = _op_of(entry.key)
        if isinstance(entry.value, _Changes):
            yield from entry.value.found
        elif stated and op is None:
            yield from _unlisted(entry.value, stated)
        # What a model says beside its changes proposes nothing.
        elif not has_changes or _is_place(entry.key):
            yield _line(entry, op)


def _unlisted(value: object, op: Op) -> Iterator[_Found]:
    """Yields the changes of a list that is none: one of them, or an object of paths."""
    if isinstance(value, Pairs) and not any(key == "path" for key, _ in value.pairs):
        for path, new in value.pairs:
            yield _straight(path, op, new, "")
    elif value is not None:
        yield _item(value, str(value.pairs if isinstance(value, Pairs) else value), op)


def _item(value: object, text: str, op: Op | None) -> _Found:
    """Returns what one item of a list of changes proposes."""
    if isinstance(value, Pairs):
        return _change({key: child for key, child in value.pairs if isinstance(key, str)}, op, text)
    if op is Op.REMOVE:
        return _straight(value, op, None, text)
    return rejected(str(value), "it is no object with a path and a value")


def _change(named: dict[str, object], op: Op | None, text: str) -> _Found:
    """Returns what an object with a path and a value proposes, by one op or its own."""
    op = op or _op_of(named.get("op"))
    if "path" not in named:
        return rejected(text, "it has no path")
    if op is None:
        return rejected(text, "it says neither add nor update")
    if op is not Op.REMOVE and "value" not in named:
        return rejected(text, "it has no value")
    # With an op of its own it is in the form that is asked for now.
    is_text = "op" in named and isinstance(named.get("value"), str)
    return _straight(named["path"], op, named.get("value"), text, is_text=is_text)


def _straight(path: object, op: Op, value: object, text: str, *, is_text: bool = False) -> _Found:
    if not isinstance(path, str):
        why = rejected(text or str(path), "a path that is no string")
        if op is not Op.REMOVE:
            return why
        return UnreadRemoval(proposal=why.proposal, reason=why.reason)
    if op is Op.REMOVE:
        return Proposal(path, op, None)
    try:
        return Proposal(path, op, plain(value), is_text)
    except ValueError as error:
        return rejected(text or path, str(error))


def _line(entry: _Entry, op: Op | None) -> _Found:
    """Returns what a path and the value below it propose, with or without an op."""
    if not isinstance(entry.key, str):
        return rejected(entry.text, "a path that is no string")
    if op is Op.REMOVE:
        return Proposal(entry.key, op, None)
    try:
        value = plain(entry.value)
    except ValueError as error:
        return rejected(entry.text, str(error))
    stated, inner = _stated(value)
    if stated is Op.REMOVE and (op is None or inner in _NOTHING):
        return Proposal(entry.key, stated, None)
    if stated in (Op.ADD, Op.UPDATE):
        # The memory decides between the two in the end; the header says what the model
        # meant, and the key when there is no header.
        return Proposal(entry.key, op or stated, inner)
    if op is None:
        return rejected(canonical({entry.key: value}), "it says neither add nor update")
    return Proposal(entry.key, op, value)


def _stated(value: Json) -> tuple[Op | None, Json]:
    """Returns the op that is written around a value, and the value."""
    if isinstance(value, dict) and len(value) == 1:
        name, inner = next(iter(value.items()))
        if name.strip().lower() != "replace":
            return _op_of(name), inner
    return None, value
