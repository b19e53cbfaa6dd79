"""Spans: the characters of a chunk that a citation is of.

A span is given only after the text at it was compared with what is cited; so what a model
made up has none.
"""

import re
from collections.abc import Sequence
from dataclasses import replace

from storage.answers.answers import StoredCitation

#: Words of a quote that are looked for; what follows them is taken to be there or not.
MAX_QUOTE_WORDS = 200

_WORD = re.compile(r"[^\W_]+")
#: Characters between two words of a text, at most, where both are to be of one quote.
MAX_BETWEEN = 12


def located(text: str, excerpt: str) -> tuple[int, int] | None:
    """Returns where an excerpt is, word for word; None if it is nowhere. The first place counts.

    One word is not found within others; of several the last may be cut off.
    """
    if not excerpt:
        return None
    is_word = not any(sign.isspace() for sign in excerpt)
    start = text.find(excerpt)
    while start >= 0:
        end = start + len(excerpt)
        if not (is_word and (_splits(text, start) or _splits(text, end))):
            return start, end
        start = text.find(excerpt, start + 1)
    return None


def quoted(text: str, quote: str) -> tuple[int, int] | None:
    """Returns where a quote is, whose blanks, signs and case may differ from the text's.

    Models copy words better than line ends and quotation marks.
    """
    exact = located(text, quote)
    if exact is not None:
        return exact
    words = _WORD.findall(quote.casefold())
    if not words or len(words) > MAX_QUOTE_WORDS:
        return None
    # Word by word: a pattern of the words would try every way to divide what is between them.
    places = [match.span() for match in _WORD.finditer(text)]
    held = [text[start:end].casefold() for start, end in places]
    first = _run_of(words, held, _runs(places))
    return None if first is None else (places[first][0], places[first + len(words) - 1][1])


def _runs(places: Sequence[tuple[int, int]]) -> list[int]:
    """Returns the number of each word's run; words further apart are in different ones."""
    runs: list[int] = []
    before = 0
    for start, end in places:
        last = runs[-1] if runs else 0
        runs.append(last + (start - before > MAX_BETWEEN))
        before = end
    return runs


def _run_of(words: Sequence[str], held: Sequence[str], runs: Sequence[int]) -> int | None:
    """Returns where some words follow each other within one run; the first place counts.

    By Knuth, Morris and Pratt: no word of the text is compared anew for each place.
    """
    back = [0] * len(words)
    for at in range(1, len(words)):
        fits = back[at - 1]
        while fits and words[at] != words[fits]:
            fits = back[fits - 1]
        back[at] = fits + (words[at] == words[fits])
    fits = 0
    for at, word in enumerate(held):
        if at and runs[at] != runs[at - 1]:
            fits = 0
        while fits and word != words[fits]:
            fits = back[fits - 1]
        fits += word == words[fits]
        if fits == len(words):
            return at - fits + 1
    return None


def spanned(citation: StoredCitation, text: str, offset: int = 0) -> StoredCitation:
    """Returns a citation with the span of its excerpt, if the chunk's text has that.

    `offset`: characters of the chunk before `text`.
    """
    span = located(text, citation.excerpt)
    if span is None:
        return citation
    return replace(citation, from_character=offset + span[0], to_character=offset + span[1])


def _splits(text: str, at: int) -> bool:
    """Returns whether a place is within a word."""
    around = text[max(at - 1, 0) : at + 1] if 0 < at < len(text) else ""
    return len(around) == 2 and _is_letter(around[0]) and _is_letter(around[1])


def _is_letter(sign: str) -> bool:
    # Scripts without blanks have their words side by side.
    return sign.isascii() and (sign.isalnum() or sign == "_")
