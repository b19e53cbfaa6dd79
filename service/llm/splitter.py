"""Cuts texts at paragraphs, sentences or words, in any language (semantic-text-splitter)."""

import re

from semantic_text_splitter import MarkdownSplitter, TextSplitter

from service.domain.prompting.tokens import estimate_tokens

_FENCE = re.compile(r"^ {0,3}(?:```|~~~)", re.MULTILINE)
#: A first piece with a smaller share of its tokens is extended, unless that breaks something that
#: fits.
_SMALL = 1 / 2
#: How often a piece is extended; a text that is no attack has few kinds of borders.
MAX_FILLS = 3


def first_piece(text: str, max_tokens: int) -> int:
    """Returns the length of a text's first piece, a `service.domain.prompting.cutting.Cutter`.

    The piece ends at the last border of the best kind: blank lines (more are better, which keeps
    definitions in source code whole), lines, sentences, words. Blocks of code in Markdown are kept
    whole if they fit. Nothing is trimmed.
    """
    end = 0
    for _ in range(MAX_FILLS + 1):
        # A paragraph that does not fit by itself begins in the piece of its heading.
        first, is_enough = _first(text[end:], max_tokens)
        end += len(first)
        max_tokens -= estimate_tokens(first)
        if is_enough or max_tokens < 1:
            break
    return end


def _first(text: str, max_tokens: int) -> tuple[str, bool]:
    """Returns the splitter's first piece, and whether it is large enough."""
    if estimate_tokens(text) <= max_tokens:
        return text, True
    kind = MarkdownSplitter if _FENCE.search(text) else TextSplitter
    pieces = kind.from_callback(estimate_tokens, max_tokens, trim=False).chunks(text)
    is_small = estimate_tokens(pieces[0]) < _SMALL * max_tokens
    return pieces[0], not is_small or _follows_whole(pieces)


def _follows_whole(pieces: list[str]) -> bool:
    """Returns whether the second piece ends at a border as good as the first one's."""
    if len(pieces) == 2:
        return True
    return _line_ends(pieces[1], pieces[2]) >= _line_ends(pieces[0], pieces[1]) > 0


def _line_ends(before: str, after: str) -> int:
    """Returns how many line ends are between two pieces."""
    blank_before = before[len(before.rstrip()) :]
    blank_after = after[: len(after) - len(after.lstrip())]
    return blank_before.count("\n") + blank_after.count("\n")
