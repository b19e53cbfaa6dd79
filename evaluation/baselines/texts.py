"""The text of a document as baselines read it, cut to what a prompt has room for."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from service.domain.prompting.cutting import largest, split

Count = Callable[[str], int]


class Text:
    """A document's chunks, one after the other, that knows where each of them is."""

    def __init__(self, chunks: Sequence[str]) -> None:
        self.whole = "\n".join(chunks)
        lengths = (len(chunk) + 1 for chunk in chunks)
        #: Where each chunk begins, and the end.
        self._starts = [0, *accumulate(lengths)]

    def positions(self, start: int, end: int) -> frozenset[int]:
        """Positions of the chunks that the characters from `start` to before `end` are of."""
        if end <= start:
            return frozenset()
        first = bisect_right(self._starts, start)
        return frozenset(range(first, bisect_left(self._starts, end) + 1))


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """A part of a document's text."""

    #: Characters from the beginning.
    start: int
    text: str

    @property
    def end(self) -> int:
        """After its last character."""
        return self.start + len(self.text)


def parts(text: str, tokens: int, count: Count) -> list[Part]:
    """Returns the text in parts of at most `tokens`, at borders of paragraphs and sentences."""
    found: list[Part] = []
    start = 0
    for piece in split(text, tokens, count):
        found.append(Part(start=start, text=piece))
        start += len(piece)
    return found


def beginning(text: str, tokens: int, count: Count) -> Part:
    """Returns as much of the beginning as has at most `tokens`, in whole words."""
    end = _longest(len(text), lambda length: count(text[:length]) <= tokens)
    if end < len(text):
        blank = max(text.rfind(" ", 0, end + 1), text.rfind("\n", 0, end + 1))
        end = blank if blank > 0 else end
    return Part(start=0, text=text[:end])


def ending(text: str, tokens: int, count: Count) -> Part:
    """Returns as much of the end as has at most `tokens`, in whole words."""
    size = len(text)
    start = size - _longest(size, lambda length: count(text[size - length :]) <= tokens)
    if start:
        blanks = [at for at in (text.find(" ", start - 1), text.find("\n", start - 1)) if at >= 0]
        start = min(blanks) + 1 if blanks else start
    return Part(start=start, text=text[start:])


def _longest(size: int, fits: Callable[[int], bool]) -> int:
    """Returns the greatest length up to `size` that fits; counts no more than it has to."""
    high = 1024
    while high < size and fits(high):
        high *= 2
    return largest(0, min(high, size), fits)
