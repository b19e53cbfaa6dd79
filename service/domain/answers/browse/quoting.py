"""Quoting: where the words that a reply says it copied stand in the log.

Only what is there counts: a quote that a model made up has no place, and is dropped.
"""

import re
from collections.abc import Iterable, Iterator, Sequence

from service.domain.answers.browse.pieces import ChunkPart, Span
from service.domain.answers.browse.replies import BrowseQuote
from service.domain.answers.citations import best_excerpt, best_position

#: Characters of a quote that are looked for; what is after them is not cited.
MAX_QUOTE_CHARACTERS = 1000
#: Characters of the passage that is cited where a reply quoted nothing.
EXCERPT_CHARACTERS = 300
#: Places that an answer is said to rest on.
MAX_SPANS = 20

#: What models write for one another. One character each, so that places stay the same.
_ALIKE = str.maketrans("“”„«»‘’‚‐‑‒–—\u00a0", '"""""\'\'\'----- ')
_WORD = re.compile(r"\w+")
_AROUND = " \t\r\n\"'“”„«»‘’`*…."


def spans_of(quotes: Iterable[BrowseQuote], parts: Sequence[ChunkPart]) -> tuple[Span, ...]:
    """Returns the places of those quotes that stand in the parts, each once."""
    found: dict[Span, None] = {}
    for quote in quotes:
        span = _span_of(quote, parts)
        if span is not None:
            found[span] = None
    return tuple(found)


def _span_of(quote: BrowseQuote, parts: Sequence[ChunkPart]) -> Span | None:
    """Returns the place of a quote: in the chunk that it names first, then in any."""
    order = sorted(parts, key=lambda part: part.position != quote.chunk)
    for words in _wordings(quote):
        for part in order:
            place = located(part.text, words)
            if place is not None:
                return span_in(part, *place)
    return None


def _wordings(quote: BrowseQuote) -> Iterator[str]:
    yield quote.words
    for words in (quote.words.strip(_AROUND), quote.line.strip(_AROUND)):
        if words and words != quote.words:
            yield words


def located(text: str, words: str) -> tuple[int, int] | None:
    """Returns where words stand in a text, from the first character to after the last.

    Exactly, or else with other blanks and other signs of the same meaning between them.
    """
    words = words[:MAX_QUOTE_CHARACTERS].strip()
    if not any(char.isalnum() for char in words):
        return None
    at = text.find(words)
    if at >= 0:
        return at, at + len(words)
    # Looked for with one blank between words, and not by a pattern that takes any: that one
    # would go over the blanks anew from each place.
    held, places = _single_blanks(text.translate(_ALIKE))
    wanted = " ".join(words.translate(_ALIKE).split())
    at = held.find(wanted)
    return (places[at], places[at + len(wanted) - 1] + 1) if at >= 0 else None


def _single_blanks(text: str) -> tuple[str, Sequence[int]]:
    """Returns a text with one blank for each run of them, and where each character was."""
    places = [
        at for at, char in enumerate(text) if not (char.isspace() and at and text[at - 1].isspace())
    ]
    return "".join(" " if text[at].isspace() else text[at] for at in places), places


def span_in(part: ChunkPart, start: int, end: int) -> Span:
    """Returns the place of some characters of a part in its chunk."""
    return Span(
        position=part.position,
        from_character=part.from_character + start,
        to_character=part.from_character + end,
        text=part.text[start:end],
    )


def best_span(said: str, parts: Sequence[ChunkPart], *, around: str = "") -> Span:
    """Returns the passage of the parts, at least one, whose words cover what is said best."""
    # Numbers of the parts stand for positions: a chunk may have several.
    numbered = [(number, part.text) for number, part in enumerate(parts)]
    part = parts[best_position(said, numbered, around=around)]
    excerpt = best_excerpt(said, part.text, EXCERPT_CHARACTERS, around=around)
    start = part.text.find(excerpt)
    return (
        span_in(part, start, start + len(excerpt))
        if excerpt
        else span_in(part, 0, len(part.text[:EXCERPT_CHARACTERS]))
    )


def best_fitting(said: str, spans: Sequence[Span], most: int) -> tuple[Span, ...]:
    """Returns the `most` places with most words of what is said, in their order."""
    if len(spans) <= most:
        return tuple(spans)
    words = set(_WORD.findall(said.casefold()))
    shared = [len(words.intersection(_WORD.findall(span.text.casefold()))) for span in spans]
    best = sorted(range(len(spans)), key=lambda at: (-shared[at], at))[:most]
    return tuple(spans[at] for at in sorted(best))


def best_of(said: str, spans: Sequence[Span], *, around: str = "") -> Span:
    """Returns the one of several places, at least one, whose words cover what is said best."""
    numbered = [(number, span.text) for number, span in enumerate(spans)]
    return spans[best_position(said, numbered, around=around)]
