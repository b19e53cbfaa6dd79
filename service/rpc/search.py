"""SearchService."""

from palimpsest.v1alpha1 import search_pb2, search_pb2_grpc
from service.rpc import filters
from service.rpc.convert import v1alpha1 as convert
from service.rpc.deadlines import deadline_of
from service.rpc.interceptors.base import Context
from service.rpc.interceptors.tenancy import current_tenant
from service.rpc.pages import Pages, fitting
from service.settings.config import Limits
from service.usecases.search.search import (
    FoundPage,
    IndexState,
    Searcher,
    SearchHit,
    SearchMode,
    SearchQuery,
)

#: Chunks when the client does not say how many.
DEFAULT_LIMIT = 10

_MODES = {
    SearchMode.DEFAULT: search_pb2.SEARCH_MODE_UNSPECIFIED,
    SearchMode.WORDS: search_pb2.SEARCH_MODE_WORDS,
    SearchMode.VECTORS: search_pb2.SEARCH_MODE_VECTORS,
    SearchMode.HYBRID: search_pb2.SEARCH_MODE_HYBRID,
}
_MODES_OF = {number: mode for mode, number in _MODES.items()}


class SearchService(search_pb2_grpc.SearchServiceServicer):
    """See search.proto."""

    def __init__(self, searcher: Searcher, pages: Pages, limits: Limits) -> None:
        self._searcher = searcher
        self._pages = pages
        self._limits = limits

    async def SearchChunks(  # noqa: N802 - named by the proto
        self, request: search_pb2.SearchChunksRequest, context: Context
    ) -> search_pb2.SearchChunksResponse:
        """Finds the chunks that fit a query best."""
        wanted = None
        if request.HasField("filter"):
            wanted = filters.chunk_filter(request.filter, self._limits)
        query = SearchQuery(
            query=request.query,
            limit=request.limit or DEFAULT_LIMIT,
            mode=_MODES_OF[request.mode],
            filter=wanted,
            rerank=request.rerank,
        )
        page = await self._searcher.find(
            current_tenant(), request.session, query, deadline=deadline_of(context)
        )
        chunks = [_found(page, one, rank) for rank, one in enumerate(page.found, 1)]
        return search_pb2.SearchChunksResponse(
            chunks=fitting(chunks, self._pages.max_bytes),
            mode=_MODES[page.mode],
            index=_index(page.index),
            unread_chunks=page.unread_chunks,
        )

    async def GetSearchIndex(  # noqa: N802
        self, request: search_pb2.GetSearchIndexRequest, context: Context
    ) -> search_pb2.GetSearchIndexResponse:
        """Says how far the index is."""
        state = await self._searcher.index(current_tenant(), request.session)
        return search_pb2.GetSearchIndexResponse(index=_index(state))


def _found(page: FoundPage, one: SearchHit, rank: int) -> search_pb2.FoundChunk:
    message = search_pb2.FoundChunk(
        rank=rank,
        score=one.score,
        words_rank=one.words_rank,
        vectors_rank=one.vectors_rank,
        words_score=one.words_score,
        vectors_score=one.vectors_score,
        from_character=one.from_character,
        to_character=one.to_character,
    )
    convert.write_logged_chunk(page.chunks[one.position], message.chunk)
    return message


def _index(state: IndexState) -> search_pb2.SearchIndex:
    return search_pb2.SearchIndex(
        head=state.head,
        indexed_position=state.indexed_position,
        embedded_position=state.embedded_position,
        language=state.language,
        embedding_model=state.embedding_model,
        vectors_unavailable=state.vectors_unavailable,
        failure=state.failure,
    )
