"""Searches the chunks of a session that fit a query best, by words and by vectors."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from typing import Any, TypeVar
from uuid import UUID, uuid4

import structlog

from service.domain.access.trust import Trust
from service.domain.answers.citations import best_span
from service.domain.calls.ledger import CallScope, Gone
from service.domain.log.chunks import LoggedChunk
from service.domain.search.fusing import Fused, ScoredChunk, fuse
from service.domain.search.reranking import MAX_TEXTS, NoOrder
from service.domain.values.errors import BudgetExhausted, FailedPrecondition, Unavailable
from service.domain.values.reasons import Reason
from service.domain.values.tenancy import session_key as key_of
from service.llm.embeddings.embedding import Embedder, EmbeddingFailed
from service.llm.providers.failures import ModelFailure
from service.settings.config import Config
from service.telemetry import tracing
from service.telemetry.names import GenAiOperation
from service.usecases.calls.leaving import for_one_client
from service.usecases.log.chunk_filter import ChunkFilter
from service.usecases.log.lookup import session_not_found
from service.usecases.search.meanwhile import meanwhile
from service.usecases.search.query_vectors import QueryVectors
from storage.engine.database import Database
from storage.engine.errors import StorageError
from storage.log.ranges import Range
from storage.search import chunk_index, posting_lists
from storage.search import vectors as search_vectors
from storage.search import words as search_words
from storage.search.finding import SearchPlace, read_chunks, read_place, with_positions
from storage.search.setup import Support, read_support

_log = structlog.get_logger("palimpsest.search")

#: Chunks that words and vectors name each before they are fused, at least.
DEPTH = 100
#: What words weigh in the fusion; and vectors where they agree with words entirely, of which
#: MIN_AGREEMENT is left where they do not. Chosen on questions that are reported nowhere.
WORDS_WEIGHT = 1.0
VECTORS_WEIGHT = 1.5
#: What the chunks of a page have together, in bytes with their metadata: it must fit a message.
PAGE_BYTES = 2 * 1024 * 1024
#: Tokens of a reranking's prompt with its reply.
RERANK_WINDOW_TOKENS = 4096
#: How long the answer to what the database can do is kept.
SUPPORT_SECONDS = 60.0
#: The share of the time until a client's deadline that is kept for words, if vectors fail.
WORDS_TIME_SHARE = 0.25
#: When to try again where an embedder does not say.
RETRY_SECONDS = 5.0

_T = TypeVar("_T")

NO_VECTORS = "the session has no vectors of the configured model yet"
NO_MODEL = "no embedding model is configured (PALIMPSEST_EMBEDDING_MODEL)"


class SearchMode(StrEnum):
    """By what chunks are found."""

    #: HYBRID where there are vectors that can be searched, else WORDS.
    DEFAULT = "default"
    WORDS = "words"
    VECTORS = "vectors"
    HYBRID = "hybrid"


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchQuery:
    """What is searched for."""

    query: str
    #: Chunks at most; 1 or more.
    limit: int = 10
    mode: SearchMode = SearchMode.DEFAULT
    filter: ChunkFilter | None = None
    #: Whether a model orders the best.
    rerank: bool = False
    #: The last position that counts; None: the head.
    up_to: int | None = None
    #: Whether the chunks themselves are wanted, with the place in each that fits best.
    #: Then there may be fewer than `limit`: together they have PAGE_BYTES at most.
    with_chunks: bool = True
    #: Tokens of a reranking's prompt with its reply.
    window_tokens: int = RERANK_WINDOW_TOKENS
    #: The model that reranks; empty: the service's default.
    rerank_model: str = ""
    #: Where the mode is DEFAULT: how long the query may take to be embedded; None: until a quarter
    #: of the time to the deadline is left. If set, the query is embedded on for the next search.
    embedding_seconds: float | None = None
    #: Whether entries of memories are searched as well, which may have vectors before chunks do.
    with_entries: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchHit:
    """A chunk that fits."""

    position: int
    #: The fusion's; compares chunks of one page only.
    score: float
    #: 1, 2, 3 …; 0: not found by them.
    words_rank: int
    vectors_rank: int
    #: BM25, and the cosine of the angle; 0 where it was not found by them.
    words_score: float
    vectors_score: float
    #: The characters of the chunk's text that fit best; both 0: none in particular.
    from_character: int
    to_character: int


@dataclass(frozen=True, kw_only=True, slots=True)
class FoundPage:
    """What a search found."""

    #: Best first.
    found: Sequence[SearchHit]
    #: By what was searched: WORDS, VECTORS or HYBRID.
    mode: SearchMode
    #: How far the index is.
    index: SearchPlace
    #: Chunks that were not searched by words: they have none yet, and are too many to read.
    unread_chunks: int = 0
    #: The query's vector; None where it was not searched by one.
    vector: Sequence[float] | None = None
    #: By position, when they were wanted.
    chunks: Mapping[int, LoggedChunk] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class PreparedQuery:
    """What a search needs of its query."""

    #: With the query's words, and why it has no vector if that failed.
    place: SearchPlace
    #: By what is searched: WORDS, VECTORS or HYBRID.
    mode: SearchMode
    #: None: only words are searched.
    vector: Sequence[float] | None
    #: Why it has none where one was wanted.
    failure: str = ""


#: `reranking.order_texts`, of a process.
Reranks = Callable[..., Awaitable[Sequence[int]]]


class Searcher:
    """Searches sessions, in one process."""

    def __init__(
        self,
        database: Database,
        embedder: Embedder | None,
        rerank_call: Reranks,
        config: Config,
        *,
        call_off: Callable[[CallScope], None] = lambda _: None,
    ) -> None:
        """`call_off` ends the model calls of a search whose client is gone."""
        self._database = database
        self._call_off = call_off
        self._embedder = embedder
        self._vectors = None if embedder is None else QueryVectors(embedder)
        self._rerank = rerank_call
        self._support: Support | None = None
        self._support_until = 0.0

    async def close(self) -> None:
        """Ends what is embedded for no search that waits."""
        if self._vectors is not None:
            await self._vectors.close()

    async def find(
        self, tenant_id: UUID, session: str, query: SearchQuery, *, deadline: float | None = None
    ) -> FoundPage:
        """Searches a session by its name, for a client.

        `deadline` is in the event loop's time: where the mode is DEFAULT, a query that is not
        embedded in good time before it is searched by words.

        Raises NotFound, InvalidInput, FailedPrecondition (VECTORS_UNAVAILABLE,
        RERANK_FAILED), Unavailable (EMBEDDING_FAILED), BudgetExhausted.
        """
        key = key_of(tenant_id, session)
        page = await self.for_client(
            tenant_id, key, lambda scope: self._search(tenant_id, key, query, scope, deadline)
        )
        if page is None:
            raise session_not_found(session)
        return page

    async def for_client(
        self,
        tenant_id: UUID,
        session_key: UUID,
        searching: Callable[[CallScope], Coroutine[Any, Any, _T | None]],
    ) -> _T | None:
        """Runs a search whose model calls end when its client is gone.

        None when its session was deleted meanwhile. Raises as `find`.
        """
        scope = CallScope(
            tenant_id=tenant_id,
            session_key=session_key,
            memory_id=None,
            occasion=f"search:{uuid4()}",
        )
        try:
            return await for_one_client(searching(scope), partial(self._call_off, scope))
        except Gone:
            return None
        except (ModelFailure, NoOrder) as error:
            raise FailedPrecondition(
                Reason.RERANK_FAILED,
                f"the model did not order what was found: {error}; search without rerank",
                {"cause": error},
            ) from error
        except EmbeddingFailed as error:
            raise Unavailable(
                Reason.EMBEDDING_FAILED,
                f"the query could not be embedded: {error}; search again, or by words",
                {"cause": error},
                retry_seconds=error.retry_seconds or RETRY_SECONDS,
            ) from error

    async def search(
        self, tenant_id: UUID, session_key: UUID, query: SearchQuery, *, scope: CallScope
    ) -> FoundPage:
        """Searches a session that exists, within an occasion of its own.

        Raises FailedPrecondition (VECTORS_UNAVAILABLE), and as they are: EmbeddingFailed,
        unless the mode is DEFAULT, ModelFailure and NoOrder of a reranking, BudgetExhausted.
        """
        page = await self._search(tenant_id, session_key, query, scope)
        assert page is not None, "the session exists"
        return page

    async def index(self, tenant_id: UUID, session: str) -> SearchPlace:
        """Returns how far the index of a session is. Raises NotFound."""
        async with self._database.direct(tenant_id, name="search") as tx:
            place = await read_place(tx, key_of(tenant_id, session), "")
        if place is None:
            raise session_not_found(session)
        return replace(place, vectors_unavailable=await self._unavailable(tenant_id))

    async def _search(
        self,
        tenant_id: UUID,
        session_key: UUID,
        query: SearchQuery,
        scope: CallScope,
        deadline: float | None = None,
    ) -> FoundPage | None:
        with tracing.memory(GenAiOperation.SEARCH_MEMORY, session_key):
            return await self._searched(tenant_id, session_key, query, scope, deadline)

    async def _searched(
        self,
        tenant_id: UUID,
        session_key: UUID,
        query: SearchQuery,
        scope: CallScope,
        deadline: float | None,
    ) -> FoundPage | None:
        wanted = query.filter or ChunkFilter()
        wanted.check()
        prepared = await self.prepare(tenant_id, session_key, query, scope, deadline)
        if prepared is None:
            return None
        place, mode, vector = prepared.place, prepared.mode, prepared.vector
        last = place.head if query.up_to is None else min(query.up_to, place.head)
        within = wanted.range(last)
        if place.has_rules and within.min_trust is None:
            # What is blocked is in the index, and nothing finds it.
            within = replace(within, min_trust=Trust.UNVERIFIED)
        async with self._database.direct(tenant_id, name="search") as tx:
            within = await with_positions(tx, session_key, within)
        depth = max(query.limit, DEPTH)
        words: Sequence[ScoredChunk] = ()
        unread = 0
        # The database looks for both at once.
        async with meanwhile(
            self._by_vectors(tenant_id, session_key, place, within, depth, vector)
        ) as near:
            if mode is not SearchMode.VECTORS:
                words, unread = await self._by_words(tenant_id, session_key, place, within, depth)
            vectors = await near
        fused = fuse(((WORDS_WEIGHT, words), (VECTORS_WEIGHT, vectors)))
        if query.rerank:
            fused = await self._reranked(tenant_id, session_key, query, fused, scope)
        page = FoundPage(
            found=_found(fused[: query.limit], words, vectors),
            mode=mode,
            index=place,
            unread_chunks=unread,
            vector=vector,
        )
        page = await self._with_chunks(tenant_id, session_key, query, page)
        if posting_lists.is_due(place.listed_position, place.indexed_position):
            await note_for_index(self._database, tenant_id, session_key)
        return page

    async def prepare(
        self,
        tenant_id: UUID,
        session_key: UUID,
        query: SearchQuery,
        scope: CallScope,
        deadline: float | None,
    ) -> PreparedQuery | None:
        """Returns the words of a query, and its vector where one is wanted; None without a session.

        Raises as `search`.
        """
        unavailable = await self._unavailable(tenant_id)
        async with self._database.direct(tenant_id, name="search") as tx:
            found = await read_place(tx, session_key, query.query)
        if found is None:
            return None
        place = replace(found, vectors_unavailable=unavailable)
        if not place.head and place.embedding_model and self._is_former(place):
            await note_for_index(self._database, tenant_id, session_key)
        mode = self._mode(query, place)
        if mode is SearchMode.WORDS:
            return PreparedQuery(place=place, mode=mode, vector=None)
        if not self._has_vectors(query, place):
            return PreparedQuery(place=place, mode=mode, vector=None, failure=NO_VECTORS)
        try:
            # No model is asked while a transaction is open.
            vector = await self._embed(query, scope, deadline)
        except (EmbeddingFailed, BudgetExhausted) as error:
            if query.mode is not SearchMode.DEFAULT:
                raise
            _log.warning("searching by words only", cause=str(error))
            failure = f"the query could not be embedded: {error}"
            place = replace(place, failure=failure)
            return PreparedQuery(place=place, mode=SearchMode.WORDS, vector=None, failure=failure)
        return PreparedQuery(place=place, mode=mode, vector=vector)

    async def vectors_model(self, tenant_id: UUID) -> str:
        """Returns the model whose vectors are searched; empty where none can be."""
        if self._embedder is None or await self._unavailable(tenant_id):
            return ""
        return self._embedder.model

    async def _unavailable(self, tenant_id: UUID) -> str:
        """Returns why vectors cannot be searched; empty when they can."""
        if self._embedder is None:
            return NO_MODEL
        return (await self._supported(tenant_id)).vectors_unavailable

    async def _supported(self, tenant_id: UUID) -> Support:
        if self._support is None or time.monotonic() > self._support_until:
            async with self._database.transaction(tenant_id, name="search") as tx:
                self._support = await read_support(tx)
            self._support_until = time.monotonic() + SUPPORT_SECONDS
        return self._support

    def _is_former(self, place: SearchPlace) -> bool:
        """Returns whether a session's vectors do not compare with those of our model."""
        return self._embedder is not None and place.embedding_model != self._embedder.model

    def _has_vectors(self, query: SearchQuery, place: SearchPlace) -> bool:
        """Returns whether a session has vectors that compare with those of our model."""
        if self._embedder is None or self._is_former(place):
            return False
        return query.with_entries or place.embedded_position > 0

    def _mode(self, query: SearchQuery, place: SearchPlace) -> SearchMode:
        asked, unavailable = query.mode, place.vectors_unavailable
        if asked is SearchMode.DEFAULT:
            able = not unavailable and self._has_vectors(query, place)
            return SearchMode.HYBRID if able else SearchMode.WORDS
        if asked is not SearchMode.WORDS and unavailable:
            raise FailedPrecondition(
                Reason.VECTORS_UNAVAILABLE,
                f"chunks cannot be found by vectors: {unavailable}; search by words",
                {"cause": unavailable},
            )
        return asked

    async def _embed(
        self, query: SearchQuery, scope: CallScope, deadline: float | None
    ) -> Sequence[float]:
        assert self._vectors is not None, "there are vectors of its model"
        is_default = query.mode is SearchMode.DEFAULT
        return await self._vectors.embed(
            query.query,
            scope,
            until=_vectors_until(query, deadline) if is_default else None,
            goes_on=is_default and query.embedding_seconds is not None,
        )

    async def _by_words(
        self, tenant_id: UUID, session_key: UUID, place: SearchPlace, within: Range, depth: int
    ) -> tuple[Sequence[ScoredChunk], int]:
        """Returns what words find, and how many chunks were not read for it."""
        if within.from_position > within.to_position:
            return (), 0
        async with self._database.direct(tenant_id, name="search") as tx:
            tail = await search_words.read_tail(tx, session_key, place, within)
            found = await search_words.read_by_words(tx, session_key, place, within, tail, depth)
        return found, tail.unread

    async def _by_vectors(
        self,
        tenant_id: UUID,
        session_key: UUID,
        place: SearchPlace,
        within: Range,
        depth: int,
        vector: Sequence[float] | None,
    ) -> Sequence[ScoredChunk]:
        if vector is None or self._support is None or within.from_position > within.to_position:
            return ()
        async with self._database.direct(tenant_id, name="search") as tx:
            return await search_vectors.read_by_vectors(
                tx,
                session_key,
                place.embedding_model,
                vector,
                within,
                depth,
                embedded_position=place.embedded_position,
                has_index=len(vector) in self._support.indexed_dimensions,
            )

    async def _reranked(
        self,
        tenant_id: UUID,
        session_key: UUID,
        query: SearchQuery,
        fused: Sequence[Fused],
        scope: CallScope,
    ) -> Sequence[Fused]:
        """Returns the best in the order of a model, then the rest."""
        positions = [one.position for one in fused[:MAX_TEXTS]]
        async with self._database.direct(tenant_id, name="search") as tx:
            chunks = await read_chunks(tx, session_key, positions, PAGE_BYTES)
        read = [one for one in fused[:MAX_TEXTS] if one.position in chunks]
        texts = [chunks[one.position].chunk.as_text() for one in read]
        order = await self._rerank(
            query.query,
            texts,
            scope=scope,
            window_tokens=query.window_tokens,
            model=query.rerank_model,
        )
        others = (one for one in fused if one.position not in chunks)
        return [*(read[at] for at in order), *others]

    async def _with_chunks(
        self, tenant_id: UUID, session_key: UUID, query: SearchQuery, page: FoundPage
    ) -> FoundPage:
        if not query.with_chunks or not page.found:
            return page
        positions = [one.position for one in page.found]
        async with self._database.direct(tenant_id, name="search") as tx:
            chunks = await read_chunks(tx, session_key, positions, PAGE_BYTES)
        # The first ones, without those that were deleted meanwhile.
        read = [one for one in page.found if one.position in chunks]
        found = [_placed(one, chunks[one.position].chunk.as_text(), query.query) for one in read]
        return replace(page, found=found, chunks=chunks)


async def note_for_index(database: Database, tenant_id: UUID, session_key: UUID) -> None:
    """Has a worker write what a search missed: lists, vectors, or entries of an older release."""
    try:
        async with database.transaction(tenant_id, name="search") as tx:
            await chunk_index.note_unlisted(tx, session_key)
    except StorageError as error:
        # What was found is no worse for it, and the next search tries again.
        _log.warning("session not noted for indexing", session=str(session_key), cause=str(error))


def _vectors_until(query: SearchQuery, deadline: float | None) -> float | None:
    """Returns until when the vector of a query may take, so that words still find something."""
    now = asyncio.get_running_loop().time()
    limits: list[float] = []
    if query.embedding_seconds is not None:
        limits.append(now + query.embedding_seconds)
    if deadline is not None:
        limits.append(now + (deadline - now) * (1 - WORDS_TIME_SHARE))
    return min(limits, default=None)


def _found(
    fused: Sequence[Fused], words: Sequence[ScoredChunk], vectors: Sequence[ScoredChunk]
) -> Sequence[SearchHit]:
    made: list[SearchHit] = []
    for one in fused:
        by_words, by_vectors = one.ranks
        near = vectors[by_vectors - 1] if by_vectors else None
        made.append(
            SearchHit(
                position=one.position,
                score=one.score,
                words_rank=by_words,
                vectors_rank=by_vectors,
                words_score=words[by_words - 1].score if by_words else 0.0,
                vectors_score=near.cosine if near else 0.0,
                from_character=near.from_character if near else 0,
                to_character=near.to_character if near else 0,
            )
        )
    return made


def _placed(found: SearchHit, text: str, query: str) -> SearchHit:
    """Returns a hit with its best sentence if words found it, else the part of its vector."""
    span = best_span(query, text) if found.words_rank else None
    if span is None:
        return found
    return replace(found, from_character=span[0], to_character=span[1])
