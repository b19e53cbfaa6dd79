"""Searches, and how far their index is."""

from palimpsest.v1 import session_service_pb2
from service.rpc.convert.chunks import chunk_filter, write_chunk
from service.rpc.convert.common import characters, message_of, numbers_of
from service.settings.config import Limits
from service.usecases.search.search import (
    FoundPage,
    SearchHit,
    SearchMode,
    SearchQuery,
)
from storage.search.finding import SearchPlace

#: Chunks of a search that names no limit, and the most that it returns.
DEFAULT_LIMIT, MAX_LIMIT = 10, 100

MODES = numbers_of(SearchMode, session_service_pb2.SearchMode, "SEARCH_MODE_", SearchMode.DEFAULT)
_MODES_OF = {number: mode for mode, number in MODES.items()}


def query(request: session_service_pb2.SearchChunksRequest, limits: Limits) -> SearchQuery:
    """Returns what to search for. Raises InvalidInput."""
    return SearchQuery(
        query=request.query,
        limit=min(request.limit or DEFAULT_LIMIT, MAX_LIMIT),
        mode=_MODES_OF[request.mode],
        filter=chunk_filter(request.filter, limits) if request.HasField("filter") else None,
        rerank=request.rerank,
    )


def result(
    page: FoundPage, hit: SearchHit, rank: int
) -> session_service_pb2.SearchChunksResponse.Result:
    """Returns a chunk that matches, and how well."""
    message = message_of(
        session_service_pb2.SearchChunksResponse.Result,
        hit,
        rank=rank,
        characters=characters(hit.from_character, hit.to_character),
        chunk=None,
    )
    write_chunk(page.chunks[hit.position], message.chunk)
    return message


def index(state: SearchPlace) -> session_service_pb2.SearchIndex:
    """Returns how far an index is."""
    return message_of(session_service_pb2.SearchIndex, state)
