"""Pinning: the text of a vector is one paragraph that has every pinned string word for word."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from service.domain.prompting.cutting import ELLIPSIS, shortened

#: Stands before pinned strings that were put after a text, and between them.
PINNED = "Pinned: "
BETWEEN = "; "

_BLANKS = re.compile(r"\s+")


@dataclass(frozen=True, kw_only=True, slots=True)
class Fitted:
    """A text that a vector may have."""

    text: str
    #: By the `count` that was given.
    tokens: int
    #: Pinned strings that are after it because they were not in it.
    appended: tuple[str, ...]
    #: Whether its end was cut off.
    is_cut: bool


def paragraph(text: str, pinned: Sequence[str]) -> str:
    """Returns a text as one paragraph without NUL; pinned strings keep blanks and line ends."""
    text = text.replace("\0", " ")
    kept = [one for one in pinned if _flat(one) != one]
    if not kept:
        return _flat(text).strip()
    # The longest first: one may begin with another.
    kept.sort(key=len, reverse=True)
    parts = re.split("(" + "|".join(map(re.escape, kept)) + ")", text)
    parts[::2] = [_flat(part) for part in parts[::2]]
    return "".join(parts).strip()


def fitted(
    text: str, pinned: Sequence[str], max_tokens: int, count: Callable[[str], int]
) -> Fitted:
    """Returns a paragraph with what is pinned, cut so that both have `max_tokens` at most.

    The pinned strings are never cut: where they have more by themselves, the text has too.
    """
    missing: list[str] = []
    while True:
        end = behind(missing)
        short = _before(text, end, max_tokens, count)
        whole = _joined(short, end)
        # What stood where the text was cut is missing only then.
        lost = [one for one in pinned if one not in whole]
        if not lost:
            break
        missing = [one for one in pinned if one in missing or one in lost]
    return Fitted(text=whole, tokens=count(whole), appended=tuple(missing), is_cut=short != text)


def behind(pinned: Sequence[str]) -> str:
    """Returns pinned strings as they stand after a text; empty for none."""
    return PINNED + BETWEEN.join(pinned) if pinned else ""


def _before(text: str, end: str, max_tokens: int, count: Callable[[str], int]) -> str:
    """Returns the text, as much of it as there is room for."""

    def together(part: str) -> int:
        return count(_joined(part, end))

    short = shortened(text, max_tokens, together)
    is_nothing = short == ELLIPSIS.strip() and short != text
    return "" if is_nothing or together(short) > max_tokens else short


def _joined(text: str, end: str) -> str:
    return f"{text} {end}" if text and end else text or end


def _flat(text: str) -> str:
    return _BLANKS.sub(" ", text)
