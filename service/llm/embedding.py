"""Embedders: vectors of texts, for finding chunks by what they mean."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from service.domain.ledger import CallScope


@dataclass(frozen=True, kw_only=True, slots=True)
class Vector:
    """A vector of a text, or of a part of it."""

    #: The characters of the text that it stands for.
    from_character: int
    to_character: int
    #: Of length 1.
    values: tuple[float, ...]


class EmbeddingFailed(Exception):
    """No vectors came; the message is one sentence without any of the text."""

    def __init__(
        self, message: str, *, retryable: bool, retry_seconds: float | None = None
    ) -> None:
        super().__init__(message)
        #: Whether the same texts may be embedded later, with nothing changed.
        self.retryable = retryable
        #: How long whoever refused asks us to wait; None: they do not say.
        self.retry_seconds = retry_seconds


class Embedder(Protocol):
    """Makes vectors by one model."""

    @property
    def model(self) -> str:
        """What its vectors are kept under: vectors of another name do not compare."""
        ...

    @property
    def dimensions(self) -> int | None:
        """Numbers of each vector; None until it is known, at the first one at the latest."""
        ...

    async def embed_chunks(
        self, texts: Sequence[str], *, scope: CallScope
    ) -> Sequence[Sequence[Vector]]:
        """The vectors of each text: one, or one for each part of a long one.

        None for a text without a word. Raises EmbeddingFailed, BudgetExhausted.
        """
        ...

    async def embed_query(self, text: str, *, scope: CallScope) -> tuple[float, ...]:
        """The vector of a question, of length 1. Raises EmbeddingFailed, BudgetExhausted."""
        ...
