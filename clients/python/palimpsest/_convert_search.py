"""Searches and what they find, to and from the proto's messages."""

from typing import Any, Unpack

from palimpsest._convert import (
    characters,
    consistency,
    known_name,
    message_of,
    number_of,
    numbers_of,
    read_point,
    value_of,
)
from palimpsest._convert_chunks import chunk, chunk_filter, text_of
from palimpsest._values_log import ChunkFilterOptions
from palimpsest._values_search import FoundChunk, SearchIndex, SearchMode, SearchResult
from palimpsest.v1 import session_service_pb2

_MODES: dict[SearchMode, Any] = numbers_of(session_service_pb2.SearchMode, "SEARCH_MODE_", "auto")
_SEARCHED_BY = {name: number for name, number in _MODES.items() if name != "auto"}


def search_request(
    session: str,
    query: str,
    *,
    limit: int,
    mode: SearchMode,
    rerank: bool,
    after: str,
    fully_applied: bool,
    from_position: int,
    to_position: int,
    **options: Unpack[ChunkFilterOptions],
) -> session_service_pb2.SearchChunksRequest:
    """Returns the request of a search. Raises TypeError and ValueError that name the field."""
    wanted = chunk_filter(from_position=from_position, to_position=to_position, **options)
    return message_of(
        session_service_pb2.SearchChunksRequest,
        session=session,
        query=query,
        limit=limit,
        mode=number_of("mode", _MODES, mode),
        filter=wanted,
        rerank=rerank,
        consistency=consistency(after, fully_applied),
    )


def search_result(message: session_service_pb2.SearchChunksResponse) -> SearchResult:
    """Returns what a search found."""
    return value_of(
        SearchResult,
        message,
        results=tuple(_found(one) for one in message.results),
        mode=known_name(_SEARCHED_BY, message.mode),
        index=search_index(message.index),
        read_point=read_point(message.read_point),
    )


def search_index(message: session_service_pb2.SearchIndex) -> SearchIndex:
    """Returns how far words and vectors of a session are."""
    return value_of(SearchIndex, message)


def _found(message: session_service_pb2.SearchChunksResponse.Result) -> FoundChunk:
    found = chunk(message.chunk)
    return value_of(
        FoundChunk,
        message,
        chunk=found,
        text=text_of(found),
        words_rank=message.words_rank or None,
        vectors_rank=message.vectors_rank or None,
        words_score=message.words_score if message.words_rank else None,
        vectors_score=message.vectors_score if message.vectors_rank else None,
        characters=characters(message),
    )
