"""Embedding: vectors of texts, for finding chunks by what they mean; `embedders` opens one."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from service.domain.calls.ledger import Call, CallInProgress, CallScope, Lease, Reservation
from service.domain.prompting.flows import ModelReply
from service.llm.providers.model_map import entry_of
from service.settings.config import Config

#: Begins the names of models that a package includes.
LOCAL = "local/"


@dataclass(frozen=True, kw_only=True, slots=True)
class TextVector:
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
        #: How long the provider asks us to wait; None: it does not say.
        self.retry_seconds = retry_seconds


class CannotEmbed(Exception):
    """The configured model cannot be used by this process; the message is one clear line."""


class EmbeddingLedger(Protocol):
    """Where calls for vectors are begun and kept, durably."""

    async def begin(
        self, scope: CallScope, key: bytes, wanted: Reservation
    ) -> ModelReply | CallInProgress | Lease:
        """The right to make the call. Raises BudgetExhausted."""
        ...

    async def record(
        self, scope: CallScope, call: Call, lease: Lease, *, last: bool
    ) -> ModelReply | None:
        """Writes what became of the call."""
        ...


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

    async def warm(self) -> None:
        """Loads what it needs, so that the first text does not wait. Raises CannotEmbed."""
        ...

    async def embed_chunks(
        self, texts: Sequence[str], *, scope: CallScope
    ) -> Sequence[Sequence[TextVector]]:
        """The vectors of each text: one, or one for each part of a long one.

        None for a text without a word. Raises EmbeddingFailed, BudgetExhausted.
        """
        ...

    async def embed_query(self, text: str, *, scope: CallScope) -> tuple[float, ...]:
        """The vector of a question, of length 1. Raises EmbeddingFailed, BudgetExhausted."""
        ...


def own_dimensions(config: Config) -> int | None:
    """What litellm's list says of the model; None for an endpoint of one's own."""
    entry = None if config.embedding_base_url else entry_of(config.embedding_model)
    return None if entry is None else entry.vector_size
