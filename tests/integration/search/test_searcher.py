"""Searching a session: words and vectors together, and what happens without the one or other."""

from collections.abc import AsyncIterator, Sequence
from typing import Any

import psycopg
import pytest

from service.domain.calls.ledger import CallScope, Gone
from service.domain.search.reranking import NoOrder
from service.domain.values.errors import FailedPrecondition, InvalidInput, NotFound, Unavailable
from service.domain.values.reasons import Reason
from service.domain.values.tenancy import DEFAULT_TENANT
from service.llm.embeddings.embedding import EmbeddingFailed
from service.settings.config import Config
from service.usecases.log.chunk_filter import ChunkFilter
from service.usecases.search import query_vectors
from service.usecases.search import search as searching
from service.usecases.search.search import Searcher, SearchMode, SearchQuery
from storage.engine.database import Database
from tests.integration.support.search_rows import (
    KEY,
    MODEL,
    FixedEmbedder,
    can_have_vectors,
    index_words,
    make_session,
    whole,
    write_vectors,
)
from tests.support.harness import Servers

TEXTS = (
    "The wolf ran over the hill. Nobody saw it.",
    "A dog barked at night.",
    "The sea was calm.",
    "An old wolf sleeps.",
)
SCOPE = CallScope(tenant_id=DEFAULT_TENANT, session_key=KEY, memory_id=None, occasion="answer:1")


async def no_rerank(*_: Any, **__: Any) -> Sequence[int]:
    """Fails: a search that does not rerank makes no call."""
    raise AssertionError("this search does not rerank")


def searcher(
    database: Database, embedder: FixedEmbedder | None = None, rerank: Any = no_rerank
) -> Searcher:
    return Searcher(database, embedder, rerank, Config())


async def positions(made: Searcher, query: str = "wolf", **wanted: Any) -> list[int]:
    page = await made.find(DEFAULT_TENANT, "s", SearchQuery(query=query, **wanted))
    return [one.position for one in page.found]


@pytest.fixture
async def both(servers: Servers, url: str) -> AsyncIterator[Database]:
    """Yields the session with words of all chunks, and vectors of the first three."""
    if not can_have_vectors(servers.as_superuser(url)):
        pytest.skip("this PostgreSQL has no pgvector")
    database = Database.connect(url, pool_size=3, name="test")
    await make_session(database, TEXTS, language="english")
    await index_words(database, 3)
    vectors = ((0.9, 0.1), (1.0, 0.0), (0.0, 1.0))
    await write_vectors(
        database,
        [(at, whole(TEXTS[at - 1], *values)) for at, values in enumerate(vectors, 1)],
    )
    yield database
    await database.close()


async def test_without_a_model_words_find_what_there_is(database: Database) -> None:
    await make_session(database, TEXTS, language="english")
    await index_words(database, 2)
    page = await searcher(database).find(DEFAULT_TENANT, "s", SearchQuery(query="old wolf"))
    assert page.mode is SearchMode.WORDS
    assert {one.position for one in page.found} == {1, 4}
    first = page.found[0]
    assert first.position == 4
    assert (first.words_rank, first.vectors_rank, first.vectors_score) == (1, 0, 0.0)
    assert first.words_score > 0
    assert page.index.vectors_unavailable == searching.NO_MODEL
    assert (page.index.head, page.index.indexed_position) == (4, 2)
    assert page.chunks[1].chunk.text == TEXTS[0]


async def test_the_best_sentence_is_where_words_found_it(database: Database) -> None:
    await make_session(database, TEXTS, language="english")
    page = await searcher(database).find(DEFAULT_TENANT, "s", SearchQuery(query="saw nobody"))
    (found,) = page.found
    assert TEXTS[0][found.from_character : found.to_character] == "Nobody saw it."


@pytest.mark.parametrize("mode", [SearchMode.VECTORS, SearchMode.HYBRID])
async def test_vectors_that_cannot_be_are_refused(
    database: Database, servers: Servers, url: str, mode: SearchMode
) -> None:
    await make_session(database, TEXTS)
    with psycopg.connect(servers.as_superuser(url), autocommit=True) as connection:
        connection.execute("DROP EXTENSION IF EXISTS vector CASCADE")
    with pytest.raises(FailedPrecondition, match="PALIMPSEST_EMBEDDING_MODEL") as refused:
        await positions(searcher(database), mode=mode)
    assert refused.value.reason is Reason.VECTORS_UNAVAILABLE
    with pytest.raises(FailedPrecondition, match="pgvector"):
        await positions(searcher(database, FixedEmbedder(1.0)), mode=mode)
    page = await searcher(database, FixedEmbedder(1.0)).find(
        DEFAULT_TENANT, "s", SearchQuery(query="sea")
    )
    assert page.mode is SearchMode.WORDS
    assert "pgvector" in page.index.vectors_unavailable


async def test_both_find_together(both: Database) -> None:
    embedder = FixedEmbedder(1.0, 0.0)
    page = await searcher(both, embedder).find(DEFAULT_TENANT, "s", SearchQuery(query="wolf"))
    assert page.mode is SearchMode.HYBRID
    assert embedder.queries == ["wolf"]
    ranks = {one.position: (one.words_rank, one.vectors_rank) for one in page.found}
    # Chunk 4 has no vector yet, 3 and 2 have no word of the query.
    assert set(ranks) == {1, 2, 3, 4}
    assert ranks[1][0] > 0
    assert ranks[1][1] == 2
    assert ranks[4][1] == 0
    assert ranks[2] == (0, 1)
    assert page.found[0].position == 1
    scores = [one.score for one in page.found]
    assert scores == sorted(scores, reverse=True)
    by_vector = next(one for one in page.found if one.position == 2)
    assert (by_vector.from_character, by_vector.to_character) == (0, len(TEXTS[1]))
    assert by_vector.vectors_score == pytest.approx(1.0)


async def test_each_alone(both: Database) -> None:
    made = searcher(both, FixedEmbedder(0.0, 1.0))
    assert await positions(made, mode=SearchMode.VECTORS) == [3, 1, 2]
    assert set(await positions(made, mode=SearchMode.WORDS)) == {1, 4}


async def test_filters_and_limits(both: Database) -> None:
    made = searcher(both, FixedEmbedder(1.0, 0.0))
    late = ChunkFilter(from_position=2, to_position=3)
    assert await positions(made, filter=late) == [2, 3]
    assert len(await positions(made, limit=2)) == 2
    assert set(await positions(made, up_to=3)) == {1, 2, 3}
    assert await positions(made, filter=ChunkFilter(from_position=100)) == []
    with pytest.raises(InvalidInput, match="before from_position"):
        await positions(made, filter=ChunkFilter(from_position=3, to_position=2))
    with pytest.raises(InvalidInput, match="NUL"):
        await positions(made, filter=ChunkFilter(metadata={"a": "\0"}))


async def test_vectors_of_another_model_are_as_none(both: Database) -> None:
    embedder = FixedEmbedder(1.0, 0.0)
    embedder.model = "test/newer"
    page = await searcher(both, embedder).find(DEFAULT_TENANT, "s", SearchQuery(query="wolf"))
    assert page.mode is SearchMode.WORDS
    assert embedder.queries == []
    assert page.index.embedding_model == MODEL
    assert await positions(searcher(both, embedder), mode=SearchMode.VECTORS) == []


async def test_the_vectors_of_the_last_queries_are_kept(
    both: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(query_vectors, "KEPT_QUERIES", 2)
    embedder = FixedEmbedder(1.0, 0.0)
    made = searcher(both, embedder)
    for query in ("wolf", "wolf", "dog", "wolf", "sea", "dog", "wolf"):
        await positions(made, query)
    assert embedder.queries == ["wolf", "dog", "sea", "dog", "wolf"]


async def test_an_embedder_that_fails(both: Database) -> None:
    failure = EmbeddingFailed("the server is away", retryable=True, retry_seconds=7.0)
    made = searcher(both, FixedEmbedder(1.0, 0.0, failure=failure))
    page = await made.find(DEFAULT_TENANT, "s", SearchQuery(query="wolf"))
    assert page.mode is SearchMode.WORDS
    assert {one.position for one in page.found} == {1, 4}
    assert "the server is away" in page.index.failure
    with pytest.raises(Unavailable, match="the server is away") as refused:
        await positions(made, mode=SearchMode.HYBRID)
    assert refused.value.reason is Reason.EMBEDDING_FAILED
    assert refused.value.retry_seconds == 7.0
    with pytest.raises(EmbeddingFailed):
        await made.search(
            DEFAULT_TENANT, KEY, SearchQuery(query="wolf", mode=SearchMode.VECTORS), scope=SCOPE
        )


async def test_a_model_orders_the_best(both: Database) -> None:
    seen: list[tuple[Any, ...]] = []

    async def backwards(query: str, texts: Sequence[str], **how: Any) -> Sequence[int]:
        seen.append((query, list(texts), how))
        return range(len(texts) - 1, -1, -1)

    plain = searcher(both, FixedEmbedder(1.0, 0.0))
    made = searcher(both, FixedEmbedder(1.0, 0.0), backwards)
    before = await positions(plain)
    wanted = SearchQuery(query="wolf", rerank=True, window_tokens=1000, rerank_model="test/m")
    page = await made.search(DEFAULT_TENANT, KEY, wanted, scope=SCOPE)
    assert [one.position for one in page.found] == before[::-1]
    ((query, texts, how),) = seen
    assert (query, texts) == ("wolf", [TEXTS[position - 1] for position in before])
    assert how == {"scope": SCOPE, "window_tokens": 1000, "model": "test/m"}
    # Ordered before the limit cuts.
    assert await positions(made, rerank=True, limit=1) == [before[-1]]


async def test_no_order_is_said(both: Database) -> None:
    async def fails(*_: Any, **__: Any) -> Sequence[int]:
        raise NoOrder("the model gave no order")

    made = searcher(both, FixedEmbedder(1.0, 0.0), fails)
    with pytest.raises(FailedPrecondition, match="gave no order") as refused:
        await positions(made, rerank=True)
    assert refused.value.reason is Reason.RERANK_FAILED
    with pytest.raises(NoOrder):
        await made.search(DEFAULT_TENANT, KEY, SearchQuery(query="wolf", rerank=True), scope=SCOPE)


async def test_a_page_fits_a_message(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    await make_session(database, ["wolf " * 100, "wolf", "wolf " * 50])
    monkeypatch.setattr(searching, "PAGE_BYTES", 700)
    page = await searcher(database).find(DEFAULT_TENANT, "s", SearchQuery(query="wolf"))
    assert [one.position for one in page.found] == [1, 3][: len(page.found)]
    assert len(page.found) < 3
    assert set(page.chunks) == {one.position for one in page.found}
    bare = SearchQuery(query="wolf", with_chunks=False)
    page = await searcher(database).find(DEFAULT_TENANT, "s", bare)
    assert len(page.found) == 3
    assert page.chunks == {}


async def test_what_is_not_there(database: Database) -> None:
    made = searcher(database)
    with pytest.raises(NotFound):
        await positions(made)
    with pytest.raises(NotFound):
        await made.index(DEFAULT_TENANT, "s")
    await make_session(database, [])
    assert await positions(made) == []
    state = await made.index(DEFAULT_TENANT, "s")
    assert (state.head, state.indexed_position, state.language) == (0, 0, "simple")


async def test_a_session_that_is_deleted_while_it_is_searched_is_not_found(both: Database) -> None:
    class Deleted(FixedEmbedder):
        async def embed_query(self, text: str, *, scope: CallScope) -> tuple[float, ...]:
            raise Gone

    with pytest.raises(NotFound, match="session 's'"):
        await positions(searcher(both, Deleted(1.0, 0.0)))


async def test_chunks_that_are_deleted_while_they_are_searched_are_left_out(
    both: Database, servers: Servers, url: str
) -> None:
    with psycopg.connect(servers.as_superuser(url), autocommit=True) as connection:
        connection.execute("SET session_replication_role = replica")
        connection.execute("DELETE FROM chunk WHERE position = 2")
    embedder = FixedEmbedder(1.0, 0.0)
    found = await positions(searcher(both, embedder), "dog", with_chunks=False)
    assert found[0] == 2
    left = [position for position in found if position != 2]
    assert await positions(searcher(both, embedder), "dog") == left

    async def backwards(query: str, texts: Sequence[str], **_: Any) -> Sequence[int]:
        assert list(texts) == [TEXTS[position - 1] for position in left]
        return list(reversed(range(len(texts))))

    made = searcher(both, embedder, backwards)
    ordered = await positions(made, "dog", rerank=True, with_chunks=False)
    assert ordered == [*reversed(left), 2]
