"""Finds a text in chunks, however it is written: by normalized Unicode and blanks."""

import unicodedata

from service.domain.log.chunks import Chunk


def normalized(text: str, *, is_exact: bool = False) -> str:
    """Returns a text in normal form NFKC, with single blanks between words and none at its ends.

    In lower case, as Unicode folds it, unless `is_exact`.
    """
    form = unicodedata.normalize("NFKC", text)
    if not is_exact:
        form = unicodedata.normalize("NFKC", form.casefold())
    return " ".join(form.split())


def contains(chunk: Chunk, phrase: str, *, is_exact: bool = False) -> bool:
    """Returns whether any part of a chunk has a normalized phrase in it.

    Parts are its texts, thread, source, and the keys and values of its metadata.
    """
    return any(phrase in normalized(part, is_exact=is_exact) for part in parts_of(chunk))


def parts_of(chunk: Chunk) -> tuple[str, ...]:
    """Returns the parts of a chunk that are not empty, each a text by itself."""
    labels = (chunk.thread, chunk.source)
    pairs = (part for pair in chunk.metadata.items() for part in pair)
    return tuple(part for part in (*chunk.parts, *labels, *pairs) if part)
