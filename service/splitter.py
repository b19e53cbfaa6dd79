"""Borders in texts: paragraphs, sentences, words, of any language (semantic-text-splitter)."""

import re

from semantic_text_splitter import MarkdownSplitter, TextSplitter

from service.domain.tokens import estimate_tokens

_FENCE = re.compile(r"^ {0,3}(?:```|~~~)", re.MULTILINE)
#: A first piece with a smaller share of the tokens it may have is filled up, unless that
#: breaks something that fits.
_SMALL = 1 / 2


def first_piece(text: str, max_tokens: int) -> int:
    """Characters of the first piece of a text, a `service.domain.tree.segmenting.Cutter`.

    It ends at the last border of the best kind that there is: blank lines (the more, the
    better, which keeps the definitions of source code whole), lines, sentences, words. Blocks
    of code within Markdown are kept whole where they fit. Nothing is trimmed.
    """
    if estimate_tokens(text) <= max_tokens:
        return len(text)
    kind = MarkdownSplitter if _FENCE.search(text) else TextSplitter
    pieces = kind.from_callback(estimate_tokens, max_tokens, trim=False).chunks(text)
    first = pieces[0]
    tokens = estimate_tokens(first)
    if tokens < _SMALL * max_tokens and not _follows_whole(pieces):
        # A heading, say, before a paragraph that is too long: that is begun with it.
        return len(first) + first_piece(text[len(first) :], max_tokens - tokens)
    return len(first)


def _follows_whole(pieces: list[str]) -> bool:
    """Whether the second piece ends at a border that is as good as the first one's."""
    if len(pieces) == 2:
        return True
    return _line_ends(pieces[1], pieces[2]) >= _line_ends(pieces[0], pieces[1]) > 0


def _line_ends(before: str, after: str) -> int:
    """Line ends between two pieces, whichever they belong to."""
    blank_before = before[len(before.rstrip()) :]
    blank_after = after[: len(after) - len(after.lstrip())]
    return blank_before.count("\n") + blank_after.count("\n")
