"""The embedder that is configured."""

from service.llm.embeddings.embedding import LOCAL, Embedder, EmbeddingLedger, own_dimensions
from service.settings.config import Config


def open_embedder(config: Config, ledger: EmbeddingLedger) -> Embedder | None:
    """The configured embedder; None when there is none. Raises CannotEmbed.

    It takes no time: models and libraries are loaded at the first text, or by `warm`.
    """
    if not config.embedding_model:
        return None
    # Late: who searches by words needs neither.
    if config.embedding_model.startswith(LOCAL):
        from service.llm.embeddings.local_embedder import LocalEmbedder

        return LocalEmbedder(config)
    from service.llm.embeddings.litellm_embedder import LitellmEmbedder

    return LitellmEmbedder(config, ledger)


def known_dimensions(config: Config) -> int | None:
    """Numbers of each vector of the configured model; None without one, or if it is not known."""
    if not config.embedding_model:
        return None
    if config.embedding_model.startswith(LOCAL):
        from service.llm.embeddings.local_embedder import dimensions_of

        return dimensions_of(config.embedding_model)
    return config.embedding_dimensions or own_dimensions(config)
