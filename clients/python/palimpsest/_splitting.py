"""Splits long texts into pieces that citations can name and steps can read."""

from collections.abc import Iterator

#: Characters of a piece of plain text: few enough for precise citations, and enough for a step to
#: read.
CHUNK_CHARACTERS = 2000


def split(text: str, characters: int = CHUNK_CHARACTERS) -> Iterator[str]:
    """Yields a text in chunks of at most `characters`, cut after blank lines, lines or words.

    Together they are the text, but for white space at its ends and more of it in one place
    than a chunk may have.
    """
    text = text.replace("\r\n", "\n").strip()
    start = 0
    while start < len(text):
        end = _cut(text, start, characters)
        piece = text[start:end]
        if not piece.isspace():
            yield piece
        start = end


def _cut(text: str, start: int, characters: int) -> int:
    limit = start + characters
    if limit >= len(text):
        return len(text)
    # A cut in the first half would leave needlessly small chunks.
    least = start + characters // 2
    for border in ("\n\n", "\n", " "):
        at = text.rfind(border, least, limit)
        if at >= 0:
            return at + len(border)
    return limit
