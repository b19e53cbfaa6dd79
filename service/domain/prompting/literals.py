"""Literals: reading values as models write them, JSON and Python's literals mixed.

One reader for both, since a reply mixes them: `null` and `None`, quotes of either kind,
tuples, trailing commas, comments, strings that stand next to each other or go over
lines. It says where it stopped, never reads a character twice for one value, and
counts what it reads.
"""

import math
import re
from dataclasses import dataclass, field
from typing import NoReturn

from service.domain.values.json_values import MAX_NUMBER_CHARACTERS, Json, checked

#: Levels of brackets that are read.
MAX_LEVELS = 64
#: Values that are read of one text, those in brackets and those of failed readings included:
#: what bounds the time of a text that is nothing but brackets.
MAX_VALUES = 10_000
#: How often a character may be looked at, on average, and what a short text may have.
READINGS = 8
MIN_READ_CHARACTERS = 100_000


class LiteralError(ValueError):
    """A text that is no literal; the message says why, `at` where."""

    def __init__(self, message: str, at: int) -> None:
        super().__init__(message)
        self.at = at


class LiteralTooLarge(LiteralError):
    """More was read than the reader may read."""


@dataclass(frozen=True, slots=True)
class Bad:
    """A value that can be skipped over and not be used."""

    #: Why, as a part of a sentence.
    reason: str


@dataclass(frozen=True, slots=True)
class Pairs:
    """An object with all its pairs: a path may be there twice."""

    pairs: list[tuple[object, object]]


# What repeats does so possessively: what was matched is never given back, so that a
# string that is not closed costs its length and no more.
_BLANK = re.compile(r"(?:[\s\ufeff]++|#[^\n]*+|//[^\n]*+)*+")
#: A string in quotes of either kind, three of them or one.
_STRINGS = {
    quote: re.compile(rf"{quote}([^{quote[0]}\\]*+(?:(?:{more})[^{quote[0]}\\]*+)*+){quote}", re.S)
    for quote, more in (
        ('"""', r'\\.|"(?!"")'),
        ("'''", r"\\.|'(?!'')"),
        ('"', r"\\."),
        ("'", r"\\."),
    )
}
_NUMBER = re.compile(
    r"[-+]?+(?:[0-9]++(?:_[0-9]++)*+)?+(?:\.[0-9]*+)?+(?:[eE][-+]?+[0-9]++)?+(?![\w.])"
)
_NAME = re.compile(r"[^\W\d]\w*")
_CONSTANTS = {
    "null": None,
    "None": None,
    "undefined": None,
    "true": True,
    "True": True,
    "false": False,
    "False": False,
}
_NO_NUMBERS = {"nan", "inf", "infinity"}
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|x[0-9a-fA-F]{2}|.)", re.DOTALL)
_ESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "\n": ""}
_CLOSE = {"{": "}", "[": "]", "(": ")"}


@dataclass(slots=True)
class LiteralReader:
    """Reads literals out of one text."""

    text: str
    #: Characters that may still be read, those of failed readings included.
    left: int
    #: Where the next token begins.
    at: int = 0
    #: Whether strings that stand next to each other are one, as in Python.
    joins_strings: bool = True
    _level: int = field(default=0)
    _values: int = field(default=0)

    def value(self) -> object:
        """Returns the literal at `at`, which moves after it. Raises LiteralError."""
        self._values += 1
        if self._values > MAX_VALUES:
            raise LiteralTooLarge(f"a reply has at most {MAX_VALUES} values", self.at)
        self.blank()
        char = self.text[self.at : self.at + 1]
        if char in ("'", '"'):
            return self.string()
        if char and char in _CLOSE:
            return self._nested(char)
        if name := _NAME.match(self.text, self.at):
            return self._named(name)
        return self._number()

    def blank(self) -> None:
        """Skips blanks and comments."""
        if blank := _BLANK.match(self.text, self.at):
            self._move(blank.end())

    def peek(self, token: str) -> bool:
        """Returns whether `token` comes next, after blanks; takes it if so."""
        self.blank()
        if not self.text.startswith(token, self.at):
            return False
        self._move(self.at + len(token))
        return True

    def key(self) -> object:
        """Returns the key of a pair: a string, or a name without quotes. Raises LiteralError."""
        self.blank()
        name = _NAME.match(self.text, self.at)
        if name and name[0] not in _CONSTANTS:
            self._move(name.end())
            return name[0]
        return self.value()

    def string(self) -> str:
        """Returns the string at `at`, and those that stand next to it. Raises LiteralError."""
        parts = [self.one_string()]
        self.blank()
        while self.joins_strings and self.text[self.at : self.at + 1] in ("'", '"'):
            parts.append(self.one_string())
            self.blank()
        return "".join(parts)

    def fail(self, message: str) -> NoReturn:
        """Raises LiteralError for what stands at `at`."""
        raise LiteralError(message, self.at)

    def one_string(self) -> str:
        """Returns the string at `at` alone, whatever stands next to it. Raises LiteralError."""
        quote = self.text[self.at]
        if self.text.startswith(quote * 3, self.at):
            quote *= 3
        match = _STRINGS[quote].match(self.text, self.at)
        if match is None:
            # All of the rest was looked at.
            self.spend(len(self.text) - self.at)
            self.fail("a string is not closed")
        self._move(match.end())
        return _unescaped(match[1])

    def _nested(self, char: str) -> object:
        if self._level >= MAX_LEVELS:
            self.fail("nested too deeply")
        self._move(self.at + 1)
        self._level += 1
        try:
            return self._pairs() if char == "{" else self._items(_CLOSE[char])
        finally:
            self._level -= 1

    def _items(self, close: str) -> object:
        items: list[object] = []
        while not self.peek(close):
            items.append(self.value())
            if self.comma_or(close):
                # Brackets round one value are no tuple.
                return items[0] if close == ")" and len(items) == 1 else items
        return items

    def _pairs(self) -> Pairs:
        pairs: list[tuple[object, object]] = []
        while not self.peek("}"):
            pairs.append(self.pair())
            if self.comma_or("}"):
                break
        return Pairs(pairs)

    def comma_or(self, close: str) -> bool:
        """Takes a comma, or `close` and returns True. Raises LiteralError."""
        if self.peek(","):
            return False
        if self.peek(close):
            return True
        if self.at >= len(self.text):
            self.fail("it is not closed")
        self.fail(f"neither a comma nor {close} behind a value")

    def pair(self) -> tuple[object, object]:
        """Reads a key, a colon and a value. Raises LiteralError."""
        key = self.key()
        if not self.peek(":"):
            self.fail("no colon behind a key")
        return key, self.value()

    def _named(self, name: re.Match[str]) -> object:
        self._move(name.end())
        if name[0] in _CONSTANTS:
            return _CONSTANTS[name[0]]
        if name[0].lower() in _NO_NUMBERS:
            return Bad(f"{name[0]}, which JSON does not have")
        raise LiteralError("it is neither JSON nor a Python literal", name.start())

    def _number(self) -> object:
        match = _NUMBER.match(self.text, self.at)
        digits = match[0] if match else ""
        if not digits.strip("+-"):
            sign = self.text[self.at : self.at + 1]
            name = _NAME.match(self.text, self.at + 1)
            if sign and sign in "-+" and name and name[0].lower() in _NO_NUMBERS:
                return self._named(name)
            self.fail("it is neither JSON nor a Python literal")
        self._move(self.at + len(digits))
        return _number(digits)

    def spend(self, characters: int) -> None:
        """Counts characters that were looked at. Raises LiteralTooLarge."""
        self.left -= characters
        if self.left < 0:
            raise LiteralTooLarge("the reply is too broken to be read on", self.at)

    def _move(self, end: int) -> None:
        self.spend(end - self.at)
        self.at = end


def reader_of(text: str, *, joins_strings: bool = True) -> LiteralReader:
    """Returns a reader that looks at each character of a text a bounded number of times."""
    left = MIN_READ_CHARACTERS + READINGS * len(text)
    return LiteralReader(text, left, joins_strings=joins_strings)


def whole_value(text: str) -> Json:
    """Returns the one value that a text is. Raises ValueError."""
    reader = reader_of(text)
    value = reader.value()
    reader.blank()
    if reader.at < len(text):
        reader.fail("something stands behind the value")
    return plain(value)


def _number(digits: str) -> object:
    bare = digits.lstrip("+-").replace("_", "")
    if len(bare) > MAX_NUMBER_CHARACTERS:
        return Bad(f"a number of more than {MAX_NUMBER_CHARACTERS} digits")
    sign = -1 if digits[0] == "-" else 1
    if bare.isdigit():
        if bare[0] == "0" and len(bare) > 1:
            return Bad("a number that begins with 0")
        return sign * int(bare)
    try:
        number = sign * float(bare)
    except ValueError:
        return Bad("a number that is none")
    return number if math.isfinite(number) else Bad("a number that JSON does not have")


def plain(value: object) -> Json:
    """Returns what was read as a JSON value within the limits. Raises ValueError."""
    return checked(bare(value))


def bare(value: object) -> Json:
    """Returns what was read as a JSON value, which may pass the limits. Raises ValueError."""
    match value:
        case Bad(reason=reason):
            raise ValueError(reason)
        case Pairs(pairs=pairs):
            return {_name(key): bare(child) for key, child in pairs}
        case list():
            return [bare(child) for child in value]
        case None | bool() | int() | float() | str():
            return value
    raise ValueError(f"a {type(value).__name__}, which JSON does not have")


def _name(key: object) -> str:
    if not isinstance(key, str):
        raise ValueError("a key that is not a string")
    return key


def _unescaped(text: str) -> str:
    if "\\" not in text:
        return text
    # A character beyond the basic plane is written as two escapes.
    plain = _ESCAPE.sub(_character, text)
    return _PAIR.sub(_joined, plain)


_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")


def _joined(match: re.Match[str]) -> str:
    return match[0].encode("utf-16", "surrogatepass").decode("utf-16")


def _character(match: re.Match[str]) -> str:
    code = match[1]
    if len(code) > 1:
        number = int(code[1:], 16)
        return chr(number) if number < 0x110000 else match[0]
    if code in _ESCAPES:
        return _ESCAPES[code]
    # An escape that neither language knows is the text's own: a formula, a file's path.
    return code if code in "\"'\\/" else match[0]
