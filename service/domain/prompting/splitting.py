"""Splitting: a text that is too long to be read at once, in pieces that are not."""

import re
from collections.abc import Callable, Sequence

#: Characters of the first piece of a text, at its best border; the piece has at most the
#: tokens given (`estimate_tokens`). 1 or more for a text that is not empty.
Cutter = Callable[[str, int], int]

#: How much text a `Cutter` should see after the longest piece, in pieces. With half, what is
#: left makes one piece or two that are not small, and it sees whether what follows a piece of
#: less than half would fit by itself.
LOOK_AHEAD = 1 / 2

#: Where a piece may end, best first.
_BORDERS = (
    re.compile(r"\n\s*\n"),
    re.compile(r"\n"),
    re.compile(r"[.!?。！？]['\"”’)\]]*\s*"),
    re.compile(r"\s+"),
)
#: A token has at most this many characters nearly always; where it has more the pieces
#: are only smaller than they could be.
_TOKEN_CHARACTERS = 8


def split(text: str, max_tokens: int, count: Callable[[str], int]) -> Sequence[str]:
    """Returns the pieces of `text`, each of at most `max_tokens` by `count`; together they are it.

    A piece ends after a paragraph where it can, else after a line, a sentence, a
    word, and only at last within a word. A piece has at least one character.
    """
    pieces: list[str] = []
    start = 0
    while start < len(text):
        end = _fitting(text, start, max_tokens, count)
        if end < len(text):
            end = _border(text, start, end)
        pieces.append(text[start:end])
        start = end
    return pieces


def _fitting(text: str, start: int, max_tokens: int, count: Callable[[str], int]) -> int:
    """Returns the end of the longest piece from `start` on that fits, found by halving."""
    low, high = start + 1, min(len(text), start + max_tokens * _TOKEN_CHARACTERS)
    while low < high:
        middle = (low + high + 1) // 2
        if count(text[start:middle]) <= max_tokens:
            low = middle
        else:
            high = middle - 1
    return low


def _border(text: str, start: int, end: int) -> int:
    """The end of the last whole unit of the piece; borders in its first half do not count."""
    least = start + (end - start) // 2
    for border in _BORDERS:
        ends = [match.end() for match in border.finditer(text, least, end)]
        if ends:
            return ends[-1]
    return end
