"""Spans: the characters of a chunk that a citation is of.

A span is given only after the text at it was compared with what is cited; so what a model
made up has none.
"""

import re
from dataclasses import replace

from storage.answers import StoredCitation

#: Words of a quote that are looked for; what follows them is taken to be there or not.
MAX_QUOTE_WORDS = 200

_WORD = re.compile(r"\w+")
#: What may stand between two words of a quote in place of what stands in the text.
_BETWEEN = r"[\W_]{1,12}"


def located(text: str, excerpt: str) -> tuple[int, int] | None:
    """Where an excerpt stands word for word; None when it does not. The first place counts.

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
    """Where a quote stands, whose blanks, signs and case may differ from the text's.

    Models copy words better than line ends and quotation marks.
    """
    exact = located(text, quote)
    if exact is not None:
        return exact
    words = _WORD.findall(quote)
    if not words or len(words) > MAX_QUOTE_WORDS:
        return None
    pattern = rf"\b{_BETWEEN.join(map(re.escape, words))}\b"
    found = re.search(pattern, text, re.IGNORECASE)
    return None if found is None else found.span()


def spanned(citation: StoredCitation, text: str, offset: int = 0) -> StoredCitation:
    """A citation with the span of its excerpt, where that stands in the chunk's text.

    `offset`: characters of the chunk before `text`.
    """
    span = located(text, citation.excerpt)
    if span is None:
        return citation
    return replace(citation, from_character=offset + span[0], to_character=offset + span[1])


def _splits(text: str, at: int) -> bool:
    """Whether a place is within a word."""
    around = text[max(at - 1, 0) : at + 1] if 0 < at < len(text) else ""
    return len(around) == 2 and _is_letter(around[0]) and _is_letter(around[1])


def _is_letter(sign: str) -> bool:
    # Scripts without blanks have their words side by side.
    return sign.isascii() and (sign.isalnum() or sign == "_")
