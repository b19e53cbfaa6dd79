"""Shortening: the beginning of a text, to the end of something that can stand alone."""

import re
from collections.abc import Callable

#: Stands after a text that goes on.
ELLIPSIS = " …"

_SENTENCE_END = re.compile(r"[.!?。！？؟।…][\"'”’»」』)\]]*(?=\s)|[。！？।]|\n\s*")
_BLANKS = re.compile(r"\s+")
#: Where a shortened text may end, best first, and which share of what fits must be left.
_BORDERS = ((_SENTENCE_END, 1 / 2), (_BLANKS, 1 / 4))
#: A token has at most this many characters nearly always; where it has more the texts are
#: only shorter than they could be.
_TOKEN_CHARACTERS = 8


def shortened(text: str, max_tokens: int, count: Callable[[str], int]) -> str:
    """Returns the beginning of a text, to the end of a sentence or else of a word, and an ellipsis.

    The text itself when that has no more than `max_tokens`.
    """
    # More characters than that are not counted: a text may be long.
    most = max_tokens * _TOKEN_CHARACTERS
    if len(text) <= most and count(text) <= max_tokens:
        return text
    return cut_back(text, _fitting(text[:most], max_tokens, count))


def cut_back(text: str, end: int) -> str:
    """A text to the last border before `end`, and an ellipsis."""
    for border, least in _BORDERS:
        # What follows says whether it is a border.
        ends = [match.end() for match in border.finditer(text, 0, end + 1)]
        best = max((one for one in ends if one <= end), default=0)
        if best > end * least:
            end = best
            break
    return (text[:end].rstrip() + ELLIPSIS).lstrip()


def _fitting(text: str, max_tokens: int, count: Callable[[str], int]) -> int:
    """Characters of the longest beginning that fits with an ellipsis, found by halving."""
    low, high = 0, len(text)
    while low < high:
        middle = (low + high + 1) // 2
        if count(text[:middle] + ELLIPSIS) <= max_tokens:
            low = middle
        else:
            high = middle - 1
    return low
