"""Vectors of queries: kept, shared, and embedded on when a search does not wait."""

import asyncio
from collections.abc import Sequence
from uuid import UUID

import pytest

from service.domain.calls.ledger import CallScope
from service.domain.values.tenancy import DEFAULT_TENANT
from service.llm.embeddings.embedding import EmbeddingFailed, TextVector
from service.usecases.search import query_vectors
from service.usecases.search.query_vectors import QueryVectors

SCOPE = CallScope(
    tenant_id=DEFAULT_TENANT, session_key=UUID(int=1), memory_id=None, occasion="search:1"
)


class SlowEmbedder:
    """Replies once `may_reply` is set."""

    model = "test/slow"
    dimensions = 2

    def __init__(self) -> None:
        self.may_reply = asyncio.Event()
        self.failure: Exception | None = None
        self.asked = 0
        self.cancelled = 0

    async def warm(self) -> None:
        """Needs nothing."""

    async def embed_chunks(
        self, texts: Sequence[str], *, scope: CallScope
    ) -> Sequence[Sequence[TextVector]]:
        """Fails: these tests embed no chunks."""
        raise NotImplementedError

    async def embed_query(self, text: str, *, scope: CallScope) -> tuple[float, ...]:
        self.asked += 1
        try:
            await self.may_reply.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if self.failure is not None:
            raise self.failure
        return (1.0, 0.0)


async def embed(
    vectors: QueryVectors, query: str = "wolf", *, seconds: float | None = None, on: bool = True
) -> Sequence[float]:
    until = None if seconds is None else asyncio.get_running_loop().time() + seconds
    return await vectors.embed(query, SCOPE, until=until, goes_on=on)


async def test_a_query_that_takes_too_long_is_embedded_once_for_the_next_search() -> None:
    embedder = SlowEmbedder()
    vectors = QueryVectors(embedder)
    for _ in range(2):
        with pytest.raises(EmbeddingFailed, match="its own limit"):
            await embed(vectors, seconds=0.01)
    waiting = asyncio.create_task(embed(vectors, on=False))
    await asyncio.sleep(0.01)
    embedder.may_reply.set()
    assert await waiting == (1.0, 0.0)
    embedder.may_reply.clear()
    assert await embed(vectors, seconds=0.01) == (1.0, 0.0)
    assert (embedder.asked, embedder.cancelled) == (1, 0)


async def test_a_search_that_ends_takes_its_call_along() -> None:
    embedder = SlowEmbedder()
    with pytest.raises(EmbeddingFailed, match="the deadline"):
        await embed(QueryVectors(embedder), seconds=0.01, on=False)
    assert embedder.cancelled == 1


async def test_a_failure_is_that_of_who_waits_and_is_not_kept() -> None:
    embedder = SlowEmbedder()
    vectors = QueryVectors(embedder)
    embedder.failure = EmbeddingFailed("away", retryable=True)
    with pytest.raises(EmbeddingFailed, match="its own limit"):
        await embed(vectors, seconds=0.01)
    waiting = asyncio.create_task(embed(vectors))
    await asyncio.sleep(0.01)
    embedder.may_reply.set()
    with pytest.raises(EmbeddingFailed, match="away"):
        await waiting
    embedder.failure = None
    assert await embed(vectors) == (1.0, 0.0)
    assert embedder.asked == 2


async def test_few_go_on_and_all_end_with_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query_vectors, "EMBEDDED_ON", 2)
    embedder = SlowEmbedder()
    vectors = QueryVectors(embedder)
    for number in range(3):
        with pytest.raises(EmbeddingFailed):
            await embed(vectors, f"query {number}", seconds=0.01)
    assert (embedder.asked, embedder.cancelled) == (3, 1)
    await vectors.close()
    assert embedder.cancelled == 3
    await vectors.close()
