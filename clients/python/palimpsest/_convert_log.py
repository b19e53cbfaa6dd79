"""The log: sessions, acks and searches, to and from the proto's messages."""

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any

from palimpsest._convert import known_name, message_of, moment, number_of, value_of
from palimpsest._convert_chunks import instant, logged_chunk, text_of
from palimpsest._values_log import (
    Ack,
    ChunkKind,
    FoundChunk,
    SearchIndex,
    SearchMode,
    SearchResult,
    SessionInfo,
)
from palimpsest.v1 import session_service_pb2
from palimpsest.v1alpha1 import search_pb2, sessions_pb2


def session(message: sessions_pb2.Session) -> SessionInfo:
    """Returns a session."""
    return value_of(SessionInfo, message, created_at=moment(message.create_time))


def ack(message: session_service_pb2.AppendChunksResponse.Ack) -> Ack:
    """Returns an ack."""
    return Ack(
        producer_sequence=message.through_producer_sequence,
        position=message.through_position,
        read_token=message.read_token,
    )


_MODES: dict[SearchMode, Any] = {
    "auto": search_pb2.SEARCH_MODE_UNSPECIFIED,
    "words": search_pb2.SEARCH_MODE_WORDS,
    "vectors": search_pb2.SEARCH_MODE_VECTORS,
    "hybrid": search_pb2.SEARCH_MODE_HYBRID,
}
_KINDS: dict[ChunkKind, Any] = {
    "text": search_pb2.CHUNK_KIND_TEXT,
    "message": search_pb2.CHUNK_KIND_MESSAGE,
    "agent_step": search_pb2.CHUNK_KIND_STEP,
}
_SEARCHED_BY = {name: number for name, number in _MODES.items() if name != "auto"}


def search_request(
    session: str,
    query: str,
    *,
    limit: int,
    mode: SearchMode,
    since: datetime | None,
    until: datetime | None,
    kinds: Collection[ChunkKind],
    metadata: Mapping[str, str] | None,
    rerank: bool,
    **positions: int,
) -> search_pb2.SearchChunksRequest:
    """Returns the request of a search. Raises TypeError and ValueError that name the field."""
    if isinstance(kinds, str):
        # Each of its letters would be a kind.
        raise ValueError("kinds must be a collection of strings, not one string")
    chunk_filter = message_of(
        search_pb2.ChunkFilter,
        from_time=instant("since", since),
        to_time=instant("until", until),
        kinds=[number_of("kinds", _KINDS, kind) for kind in dict.fromkeys(kinds)],
        metadata=dict(metadata or {}),
        **positions,
    )
    return message_of(
        search_pb2.SearchChunksRequest,
        session=session,
        query=query,
        limit=limit,
        mode=number_of("mode", _MODES, mode),
        filter=chunk_filter,
        rerank=rerank,
    )


def search_result(message: search_pb2.SearchChunksResponse) -> SearchResult:
    """Returns what a search found."""
    return value_of(
        SearchResult,
        message,
        chunks=tuple(_found(one) for one in message.chunks),
        mode=known_name(_SEARCHED_BY, message.mode),
        index=search_index(message.index),
    )


def search_index(message: search_pb2.SearchIndex) -> SearchIndex:
    """Returns how far words and vectors of a session are."""
    return value_of(SearchIndex, message)


def _found(message: search_pb2.FoundChunk) -> FoundChunk:
    found = logged_chunk(message.chunk)
    return value_of(
        FoundChunk,
        message,
        chunk=found,
        text=text_of(found),
        words_rank=message.words_rank or None,
        vectors_rank=message.vectors_rank or None,
        words_score=message.words_score if message.words_rank else None,
        vectors_score=message.vectors_score if message.vectors_rank else None,
    )
