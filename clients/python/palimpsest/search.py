"""Searching a session's log."""

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any

from palimpsest import convert, specs
from palimpsest.connection import CALL_SECONDS, Connection
from palimpsest.search_values import ChunkKind, FoundChunk, SearchIndex, SearchMode, SearchResult
from palimpsest.v1 import search_pb2, search_pb2_grpc
from palimpsest.values import Chunk

MODES: dict[SearchMode, Any] = {
    "auto": search_pb2.SEARCH_MODE_UNSPECIFIED,
    "words": search_pb2.SEARCH_MODE_WORDS,
    "vectors": search_pb2.SEARCH_MODE_VECTORS,
    "hybrid": search_pb2.SEARCH_MODE_HYBRID,
}
KINDS: dict[ChunkKind, Any] = {
    "text": search_pb2.CHUNK_KIND_TEXT,
    "message": search_pb2.CHUNK_KIND_MESSAGE,
    "step": search_pb2.CHUNK_KIND_STEP,
}
_SEARCHED_BY = {number: name for name, number in MODES.items() if name != "auto"}


class Search:
    """Searches one session."""

    def __init__(self, client: Connection, session: str) -> None:
        self._client = client
        self._session = session
        self._stub = search_pb2_grpc.SearchServiceStub(client.channel)

    async def search(
        self,
        query: str,
        *,
        limit: int = 0,
        mode: SearchMode = "auto",
        from_position: int = 0,
        to_position: int = 0,
        since: datetime | None = None,
        until: datetime | None = None,
        kinds: Collection[ChunkKind] = (),
        metadata: Mapping[str, str] | None = None,
        rerank: bool = False,
        timeout: float = CALL_SECONDS,
    ) -> SearchResult:
        """See `palimpsest.session.Session.search`."""
        if isinstance(kinds, str):
            # Each of its letters would be a kind.
            raise ValueError("kinds must be a collection of strings, not one string")
        chunk_filter = specs.message_of(
            search_pb2.ChunkFilter,
            from_position=from_position,
            to_position=to_position,
            from_time=_instant("since", since),
            to_time=_instant("until", until),
            kinds=[_number("kinds", KINDS, kind) for kind in dict.fromkeys(kinds)],
            metadata=dict(metadata or {}),
        )
        request = specs.message_of(
            search_pb2.SearchChunksRequest,
            session=self._session,
            query=query,
            limit=limit,
            mode=_number("mode", MODES, mode),
            filter=chunk_filter,
            rerank=rerank,
        )
        # With a model in it, it costs: not repeated.
        response = await self._client.call(
            self._stub.SearchChunks, request, timeout=timeout, retry=not rerank
        )
        return SearchResult(
            chunks=tuple(_found(one) for one in response.chunks),
            mode=_SEARCHED_BY.get(response.mode, "unknown"),
            index=_index(response.index),
            unread_chunks=response.unread_chunks,
        )

    async def index(self) -> SearchIndex:
        """See `palimpsest.session.Session.search_index`."""
        request = search_pb2.GetSearchIndexRequest(session=self._session)
        response = await self._client.call(self._stub.GetSearchIndex, request)
        return _index(response.index)


def _number(setting: str, table: Mapping[Any, Any], given: object) -> Any:
    # Not `given in table`, which fails for what has no hash.
    for name, number in table.items():
        if name == given:
            return number
    allowed = " or ".join(repr(name) for name in table)
    raise ValueError(f"{setting} must be {allowed}, not {given!r}")


def _instant(setting: str, given: datetime | None) -> datetime | None:
    if given is not None and given.tzinfo is None:
        raise ValueError(f"{setting} must have a time zone, as in datetime.now(UTC)")
    return given


def _found(message: search_pb2.FoundChunk) -> FoundChunk:
    chunk = convert.chunk(message.chunk)
    return FoundChunk(
        chunk=chunk,
        text=_text_of(chunk),
        rank=message.rank,
        score=message.score,
        words_rank=message.words_rank or None,
        vectors_rank=message.vectors_rank or None,
        words_score=message.words_score if message.words_rank else None,
        vectors_score=message.vectors_score if message.vectors_rank else None,
        from_character=message.from_character,
        to_character=message.to_character,
    )


def _text_of(chunk: Chunk) -> str:
    """A chunk as one text, as the service counts its characters."""
    if chunk.kind == "message":
        return f"{chunk.role}: {chunk.text}"
    if chunk.kind == "step":
        return "\n".join(f"{name}: {text}" for name, text in chunk.step_parts)
    return chunk.text


def _index(message: search_pb2.SearchIndex) -> SearchIndex:
    return SearchIndex(
        head=message.head,
        indexed_position=message.indexed_position,
        embedded_position=message.embedded_position,
        language=message.language,
        embedding_model=message.embedding_model,
        vectors_unavailable=message.vectors_unavailable,
        failure=message.failure,
    )
