"""Paths name places in a memory.

Three ways of writing are read: that of the PRISM paper, `$.'attributes'.'Food'`
(appendix D), RFC 9535 normalized paths, `$['attributes']['Food']`, and JSON
Pointers (RFC 6901), `/attributes/Food`. One is stored: the normalized path.
"""

import re
from dataclasses import dataclass

from service.domain.values.json_values import check_text

#: Steps from the root.
MAX_PATH_DEPTH = 32
#: Characters of a key.
MAX_KEY_CHARACTERS = 512
#: Characters of a path as text.
MAX_PATH_CHARACTERS = 20_000


class PathError(ValueError):
    """A text that is no path; the message is a sentence."""


@dataclass(frozen=True, slots=True)
class Path:
    """A place in a memory: keys and list indexes from the root."""

    tokens: tuple[str | int, ...] = ()

    def __truediv__(self, token: str | int) -> "Path":
        """Returns the place below this one."""
        return Path((*self.tokens, token))

    @property
    def parent(self) -> "Path":
        """The place above this one; the root's is the root."""
        return Path(self.tokens[:-1])

    def __str__(self) -> str:
        """Returns the normalized path (RFC 9535, section 2.7)."""
        return "$" + "".join(
            f"[{token}]" if isinstance(token, int) else f"['{_escape(token)}']"
            for token in self.tokens
        )

    @classmethod
    def parse(cls, text: str) -> "Path":
        """Reads any of the three ways of writing. Raises PathError."""
        text = text.strip()
        if len(text) > MAX_PATH_CHARACTERS:
            raise PathError(f"a path of more than {MAX_PATH_CHARACTERS} characters")
        tokens = _pointer(text) if text.startswith("/") else _json_path(text)
        if len(tokens) > MAX_PATH_DEPTH:
            raise PathError(f"a path of more than {MAX_PATH_DEPTH} steps")
        for token in tokens:
            if isinstance(token, str):
                _check_key(token)
        return cls(tuple(tokens))


def _check_key(key: str) -> None:
    if len(key) > MAX_KEY_CHARACTERS:
        raise PathError(f"a key of more than {MAX_KEY_CHARACTERS} characters")
    try:
        check_text(key)
    except ValueError as error:
        raise PathError(f"a key holds {error}") from error


_ESCAPES = {
    "\b": "\\b",
    "\t": "\\t",
    "\n": "\\n",
    "\f": "\\f",
    "\r": "\\r",
    "'": "\\'",
    "\\": "\\\\",
}
_UNESCAPES = {escape[1]: char for char, escape in _ESCAPES.items()} | {'"': '"', "/": "/"}


def _escape(key: str) -> str:
    return "".join(
        _ESCAPES.get(char) or (f"\\u{ord(char):04x}" if char < " " else char) for char in key
    )


def _pointer(text: str) -> list[str | int]:
    # Whether "0" is a key or an index is for the schema to say.
    return [part.replace("~1", "/").replace("~0", "~") for part in text[1:].split("/")]


#: A negative one counts from the end (RFC 9535, section 2.3.3), as the memory resolves it.
_INDEX = re.compile(r"\[\s*(0|-?[1-9][0-9]{0,9})\s*\]")
#: `[]`, `[-]` and `[+]` name the place after a list's last element, as "-" does in
#: a JSON Pointer. Blanks are never given back: two runs of them would take quadratic time.
_APPEND = re.compile(r"\[\s*+[-+]?\s*+\]")
_BRACKET_OPEN = re.compile(r"\[\s*(?=['\"])")
_BRACKET_CLOSE = re.compile(r"\s*\]")
_DOT = re.compile(r"\s*\.\s*")
_BARE = re.compile(r"[^\s.\[\]'\"][^.\[\]'\"]*")
_ESCAPED = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)


def _json_path(text: str) -> list[str | int]:
    if not text.startswith("$"):
        raise PathError("a path begins with $ or /")
    tokens: list[str | int] = []
    at = 1
    while at < len(text):
        at = _step(text, at, tokens)
    return tokens


def _step(text: str, at: int, tokens: list[str | int]) -> int:
    """Reads one step after `at` and returns where the next begins."""
    if index := _INDEX.match(text, at):
        tokens.append(int(index[1]))
        return index.end()
    if append := _APPEND.match(text, at):
        tokens.append("-")
        return append.end()
    if opened := _BRACKET_OPEN.match(text, at):
        key, end = _quoted(text, opened.end())
        closed = _BRACKET_CLOSE.match(text, end)
        if not closed:
            raise PathError(f"a bracket is not closed at character {end + 1}")
        tokens.append(key)
        return closed.end()
    dot = _DOT.match(text, at)
    if not dot:
        raise PathError(f"neither a dot nor a bracket at character {at + 1}")
    at = dot.end()
    if at < len(text) and text[at] in "'\"":
        key, end = _quoted(text, at)
        tokens.append(key)
        return end
    bare = _BARE.match(text, at)
    if not bare:
        raise PathError(f"no name at character {at + 1}")
    tokens.append(bare[0].rstrip())
    return bare.end()


def _quoted(text: str, at: int) -> tuple[str, int]:
    """Returns the key in quotes at `at`, and where it ends.

    An apostrophe within a key in single quotes is often left bare by models: the key
    goes on unless what follows could follow a key.
    """
    quote = text[at]
    end = at + 1
    while end < len(text):
        if text[end] == "\\":
            end += 2
        elif text[end] == quote and _may_follow(text, end + 1):
            return _unescape(text[at + 1 : end]), end + 1
        else:
            end += 1
    raise PathError(f"a quote is not closed at character {at + 1}")


_FOLLOWS = re.compile(r"\s*(\Z|\]|\[|\.\s*['\"\w])")


def _may_follow(text: str, at: int) -> bool:
    return _FOLLOWS.match(text, at) is not None


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text

    def char(match: re.Match[str]) -> str:
        code = match[1]
        if len(code) == 5:
            return chr(int(code[1:], 16))
        if code not in _UNESCAPES:
            raise PathError(f"an escape that is none: \\{code}")
        return _UNESCAPES[code]

    # A character beyond the basic plane is written as two escapes.
    pairs = _ESCAPED.sub(char, text)
    return pairs.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
