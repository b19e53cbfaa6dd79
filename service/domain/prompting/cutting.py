"""Cuts texts at the ends of sentences and words: to their beginning, or into pieces."""

import re
from collections.abc import Callable, Sequence

#: Characters of the first piece of a text, at its best border; the piece has at most the
#: tokens given (`estimate_tokens`). 1 or more for a text that is not empty.
Cutter = Callable[[str, int], int]

#: How much text a `Cutter` should see after the longest piece, in pieces. With half, what is
#: left makes one piece or two that are not small, and it sees whether what follows a piece of
#: less than half would fit by itself.
LOOK_AHEAD = 1 / 2
#: Stands after a text that goes on.
ELLIPSIS = " …"

_SENTENCE_END = re.compile(r"[.!?。！？؟।…][\"'”’»」』)\]]*(?=\s)|[。！？।]|\n\s*")
_BLANKS = re.compile(r"\s+")
#: Where a shortened text may end, best first, and which share of what fits must be left.
_ENDS = ((_SENTENCE_END, 1 / 2), (_BLANKS, 1 / 4))
#: Where a piece may end, best first.
_BORDERS = (
    re.compile(r"\n\s*\n"),
    re.compile(r"\n"),
    re.compile(r"[.!?。！？]['\"”’)\]]*\s*"),
    _BLANKS,
)
#: A token has at most this many characters nearly always; where it has more the texts are
#: only shorter than they could be.
TOKEN_CHARACTERS = 8


def largest(low: int, high: int, fits: Callable[[int], bool]) -> int:
    """Returns the largest number up to `high` that fits, by halving; `low` where none does."""
    while low < high:
        middle = (low + high + 1) // 2
        if fits(middle):
            low = middle
        else:
            high = middle - 1
    return low


def shortened(text: str, max_tokens: int, count: Callable[[str], int]) -> str:
    """Returns the beginning of a text, to the end of a sentence or else of a word, and an ellipsis.

    The text itself when that has no more than `max_tokens`.
    """
    # More characters than that are not counted: a text may be long.
    most = max_tokens * TOKEN_CHARACTERS
    if len(text) <= most and count(text) <= max_tokens:
        return text
    size = min(len(text), most)
    return cut_back(text, largest(0, size, lambda end: count(text[:end] + ELLIPSIS) <= max_tokens))


def cut_back(text: str, end: int) -> str:
    """Returns a text to the last border before `end`, and an ellipsis."""
    for border, least in _ENDS:
        # What follows says whether it is a border.
        ends = [match.end() for match in border.finditer(text, 0, end + 1)]
        best = max((one for one in ends if one <= end), default=0)
        if best > end * least:
            end = best
            break
    return (text[:end].rstrip() + ELLIPSIS).lstrip()


def split(text: str, max_tokens: int, count: Callable[[str], int]) -> Sequence[str]:
    """Returns the pieces of `text`, each of at most `max_tokens` by `count`; together they are it.

    A piece ends after a paragraph where it can, else after a line, a sentence, a
    word, and only at last within a word. A piece has at least one character.
    """

    def fits(end: int) -> bool:
        return count(text[start:end]) <= max_tokens

    pieces: list[str] = []
    start = 0
    while start < len(text):
        end = largest(start + 1, min(len(text), start + max_tokens * TOKEN_CHARACTERS), fits)
        if end < len(text):
            end = _border(text, start, end)
        pieces.append(text[start:end])
        start = end
    return pieces


def _border(text: str, start: int, end: int) -> int:
    """Returns the end of the last whole unit of a piece; borders in its first half do not count."""
    least = start + (end - start) // 2
    for border in _BORDERS:
        ends = [match.end() for match in border.finditer(text, least, end)]
        if ends:
            return ends[-1]
    return end
