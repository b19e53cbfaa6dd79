"""Cuts texts into the parts that get a vector each."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from service.domain.prompting.cutting import largest
from service.domain.prompting.tokens import estimate_tokens
from service.llm.splitter import first_piece

#: How many times as long as a part the text for the splitter is, which reads all of it.
_PIECE_PARTS = 3
#: Characters that a token has at most, by our estimate.
_TOKEN_CHARACTERS = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class EmbeddedPart:
    """A part of one of several texts."""

    #: The number of its text, from 0.
    text: int
    from_character: int
    to_character: int


def parts_of(texts: Sequence[str], max_tokens: int) -> list[EmbeddedPart]:
    """Returns the parts of texts, in order, without blank ones."""
    return [
        EmbeddedPart(text=number, from_character=start, to_character=end)
        for number, text in enumerate(texts)
        for start, end in _cut(text, max_tokens)
        if text[start:end].strip()
    ]


def ends_of(question: str, max_tokens: int) -> str:
    """Returns what of a question gets a vector: of a long one both of its ends, half of it each.

    What it is about is often at its end: the code after the request, or the other way round.
    """
    if estimate_tokens(question) <= max_tokens:
        return question

    def fits(length: int) -> bool:
        return estimate_tokens(question[:length]) <= max_tokens // 2

    def fits_at_end(length: int) -> bool:
        return estimate_tokens(question[len(question) - length :]) <= max_tokens // 2

    begin = question[: largest(1, len(question), fits)]
    end = question[len(question) - largest(1, len(question), fits_at_end) :]
    return f"{begin}\n{end}"


def halves_of(part: EmbeddedPart, text: str) -> list[EmbeddedPart]:
    """Returns the halves of a part without blank ones; none for a single character."""
    length = part.to_character - part.from_character
    if length < 2:
        return []
    middle = part.from_character + length // 2
    # Between words, if there are any near the middle.
    space = text.rfind(" ", part.from_character + length // 4, middle)
    cut = space + 1 if space > part.from_character else middle
    both = ((part.from_character, cut), (cut, part.to_character))
    return [
        EmbeddedPart(text=part.text, from_character=start, to_character=end)
        for start, end in both
        if text[start:end].strip()
    ]


def _cut(text: str, max_tokens: int) -> Iterator[tuple[int, int]]:
    start = 0
    piece = _PIECE_PARTS * max_tokens * _TOKEN_CHARACTERS
    while start < len(text):
        rest = text[start : start + piece]
        if len(rest) + start == len(text) and estimate_tokens(rest) <= max_tokens:
            yield start, len(text)
            return
        # A part has at least one character, or the loop would not end.
        end = start + max(first_piece(rest, max_tokens), 1)
        yield start, end
        start = end


def unit(values: Sequence[float]) -> tuple[float, ...] | None:
    """Returns a vector at norm 1; None if it has no direction."""
    length = math.sqrt(math.fsum(one * one for one in values))
    if not math.isfinite(length) or length == 0:
        return None
    return tuple(one / length for one in values)
