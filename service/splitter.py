"""Borders in texts: paragraphs, sentences, words, of any language (semantic-text-splitter)."""


def first_piece(text: str, max_tokens: int) -> int:
    """Characters of the first piece of a text, a `service.domain.tree.segmenting.Cutter`."""
    raise NotImplementedError
