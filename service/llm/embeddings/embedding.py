"""Makes vectors of texts, to find chunks by what they mean."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from service.domain.calls.ledger import CallScope
from service.llm.providers.model_map import entry_of
from service.llm.providers.plans import OutcomeLedger
from service.settings.config import Config

#: The prefix of models that are in a Python package.
LOCAL = "local/"


@dataclass(frozen=True, kw_only=True, slots=True)
class TextVector:
    """A vector of a text, or of a part of it."""

    #: The characters of the text that it represents.
    from_character: int
    to_character: int
    #: A vector of norm 1.
    values: tuple[float, ...]


class EmbeddingFailed(Exception):
    """There are no vectors; the message is one sentence without any of the text."""

    def __init__(
        self, message: str, *, retryable: bool, retry_seconds: float | None = None
    ) -> None:
        super().__init__(message)
        #: Whether the same texts may be embedded later, with nothing changed.
        self.retryable = retryable
        #: How long the provider asks us to wait, if it does.
        self.retry_seconds = retry_seconds


class CannotEmbed(Exception):
    """This process cannot use the configured model; the message is one clear line."""


class Embedder(Protocol):
    """Makes vectors by one model."""

    @property
    def model(self) -> str:
        """The name under which its vectors are stored; those of other names are not comparable."""
        ...

    @property
    def dimensions(self) -> int | None:
        """The length of each vector; None until it is known, at the latest from the first one."""
        ...

    async def warm(self) -> None:
        """Loads what it needs, so that the first text does not wait. Raises CannotEmbed."""
        ...

    async def embed_chunks(
        self, texts: Sequence[str], *, scope: CallScope
    ) -> Sequence[Sequence[TextVector]]:
        """Returns the vectors of each text: none for a blank one, several for a long one.

        Raises EmbeddingFailed, BudgetExhausted.
        """
        ...

    async def embed_query(self, text: str, *, scope: CallScope) -> tuple[float, ...]:
        """Returns the vector of a question, of norm 1. Raises EmbeddingFailed, BudgetExhausted."""
        ...


def open_embedder(config: Config, ledger: OutcomeLedger) -> Embedder | None:
    """Returns the configured embedder; None when there is none. Raises CannotEmbed.

    It takes no time: models and libraries are loaded at the first text, or by `warm`.
    """
    if not config.embedding_model:
        return None
    # Late: a search by words needs neither.
    if config.embedding_model.startswith(LOCAL):
        from service.llm.embeddings.local_embedder import LocalEmbedder

        return LocalEmbedder(config)
    from service.llm.embeddings.litellm_embedder import LitellmEmbedder

    return LitellmEmbedder(config, ledger)


def known_dimensions(config: Config) -> int | None:
    """Returns the length of the configured model's vectors; None without one, or if unknown."""
    if not config.embedding_model:
        return None
    if config.embedding_model.startswith(LOCAL):
        from service.llm.embeddings.local_embedder import dimensions_of

        return dimensions_of(config.embedding_model)
    return config.embedding_dimensions or own_dimensions(config)


def own_dimensions(config: Config) -> int | None:
    """Returns the length in litellm's list; None for an endpoint of one's own, or if unknown."""
    entry = None if config.embedding_base_url else entry_of(config.embedding_model)
    return None if entry is None else entry.vector_size
