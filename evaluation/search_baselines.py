"""Ranks chunks in plain ways, in this process: what a program without a service would have.

They rank the same chunks as the service, as the same texts, but share no code with its search.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from operator import mul
from uuid import UUID

from evaluation.datasets import Document
from evaluation.searching import SearchWay
from service.domain.calls.ledger import CallScope
from service.domain.values.tenancy import DEFAULT_TENANT
from service.llm.embeddings.embedding import LOCAL, Embedder
from service.settings.config import Config

#: Hits of each ranking that are fused.
DEPTH = 100
#: How little the first ranks of a ranking differ in reciprocal rank fusion; the paper's.
RANK_CONSTANT = 60
#: More tokens than the model reads: each text has one vector.
_UNCUT_TOKENS = 100_000

#: No vector of these is stored or charged.
_SCOPE = CallScope(
    tenant_id=DEFAULT_TENANT, session_key=UUID(int=0), memory_id=None, occasion="eval:baseline"
)

#: Positions, best first, of each query.
Ranked = Sequence[Sequence[int]]


#: The ways that are ranked here, in the order in which they are compared.
BASELINES = (SearchWay.BM25S, SearchWay.STEMMED, SearchWay.COSINE, SearchWay.RRF)
#: Those that need an embedding model in this process.
BY_VECTORS = frozenset({SearchWay.COSINE, SearchWay.RRF})


def local_embedder(config: Config) -> Embedder | None:
    """Returns the configured model if it runs in this process. Raises CannotEmbed."""
    if not config.embedding_model.startswith(LOCAL):
        return None
    from service.llm.embeddings.local_embedder import LocalEmbedder

    return LocalEmbedder(config.model_copy(update={"embedding_max_tokens": _UNCUT_TOKENS}))


class Baselines:
    """Ranks the chunks of documents."""

    def __init__(self, embedder: Embedder | None) -> None:
        """`embedder` makes vectors in this process; None: there are no ways of BY_VECTORS."""
        self._embedder = embedder

    async def rank(
        self, document: Document, ways: Sequence[SearchWay]
    ) -> Mapping[SearchWay, Ranked]:
        """Returns what each way finds for each question, in order."""
        texts = [chunk.as_text() for chunk in document.chunks]
        queries = [question.text for question in document.questions]
        found: dict[SearchWay, Ranked] = {}
        if SearchWay.BM25S in ways:
            found[SearchWay.BM25S] = await asyncio.to_thread(by_words, texts, queries, None)
        if {SearchWay.STEMMED, SearchWay.RRF} & set(ways):
            found[SearchWay.STEMMED] = await asyncio.to_thread(by_words, texts, queries, _stems())
        if BY_VECTORS & set(ways):
            found[SearchWay.COSINE] = await self._by_vectors(texts, queries)
        if SearchWay.RRF in ways:
            both = zip(found[SearchWay.STEMMED], found[SearchWay.COSINE], strict=True)
            found[SearchWay.RRF] = [rank_fused(one) for one in both]
        return {way: found[way] for way in ways}

    async def _by_vectors(self, texts: Sequence[str], queries: Sequence[str]) -> Ranked:
        assert self._embedder is not None, "the command has asked for a local model"
        made = await self._embedder.embed_chunks(texts, scope=_SCOPE)
        # One vector a chunk, of its beginning; a blank one has none.
        vectors = {at: one[0].values for at, one in enumerate(made, start=1) if one}
        found: list[list[int]] = []
        for query in queries:
            wanted = await self._embedder.embed_query(query, scope=_SCOPE)
            found.append(_best({at: sum(map(mul, one, wanted)) for at, one in vectors.items()}))
        return found


def by_words(
    texts: Sequence[str],
    queries: Sequence[str],
    stems: Callable[[Sequence[str]], Sequence[str]] | None,
) -> Ranked:
    """Returns the positions that have a word of each query, best first by BM25."""
    # Late: it takes a second, and no other command needs it.
    import bm25s

    # It reports each index that it builds.
    logging.getLogger("bm25s").setLevel(logging.WARNING)

    def words(said: Sequence[str]) -> Sequence[Sequence[str]]:
        read: Sequence[Sequence[str]] = bm25s.tokenize(
            list(said), stopwords="en", stemmer=stems, return_ids=False, show_progress=False
        )
        return read

    held = words(texts)
    if not any(held):
        return [()] * len(queries)
    index = bm25s.BM25()
    index.index(held, show_progress=False)
    found: list[Sequence[int]] = []
    for query in queries:
        read = words([query])
        scores = index.get_scores(list(read[0])).tolist() if any(read) else []
        found.append(_best({at: score for at, score in enumerate(scores, start=1) if score > 0}))
    return found


def rank_fused(rankings: Sequence[Sequence[int]]) -> Sequence[int]:
    """Returns the positions of rankings by the sum of their reciprocal ranks."""
    scores: dict[int, float] = {}
    for ranking in rankings:
        for rank, position in enumerate(ranking[:DEPTH], start=1):
            scores[position] = scores.get(position, 0.0) + 1 / (RANK_CONSTANT + rank)
    return _best(scores)


def _best(scores: Mapping[int, float]) -> list[int]:
    return sorted(scores, key=lambda position: (-scores[position], position))


def _stems() -> Callable[[Sequence[str]], Sequence[str]]:
    import snowballstemmer

    stems: Callable[[Sequence[str]], Sequence[str]] = snowballstemmer.stemmer("english").stemWords
    return stems
