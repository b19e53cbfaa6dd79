"""What a search finds, and how far its index is, to and from the proto's messages."""

from dataclasses import dataclass
from typing import Literal

from palimpsest._convert import value_of
from palimpsest._convert_chunks import chunk, text_of
from palimpsest._values_common import CharacterRange, ReadPoint
from palimpsest._values_log import Chunk
from palimpsest.v1 import session_service_pb2

#: By what chunks are found; "auto": by both where vectors can be searched, else by words.
SearchMode = Literal["auto", "words", "vectors", "hybrid"]
#: By what was searched; "unknown" only where the service is newer.
SearchedBy = Literal["words", "vectors", "hybrid", "unknown"]


@dataclass(frozen=True, kw_only=True, slots=True)
class FoundChunk:
    """A chunk that matches a query."""

    chunk: Chunk
    #: The chunk as one text, which the characters below count in.
    text: str
    #: 1, 2, 3 …
    rank: int
    #: The fusion's; compares chunks of one result only.
    score: float
    #: Its rank by words alone, and by vectors alone; None: not found by them.
    words_rank: int | None
    vectors_rank: int | None
    #: BM25; and the cosine of the angle between query and chunk, -1 to 1.
    words_score: float | None
    vectors_score: float | None
    #: The characters of `text` that match best; None: none in particular.
    characters: CharacterRange | None

    @property
    def excerpt(self) -> str:
        """What of the text matches best; empty: nothing in particular."""
        place = self.characters
        return "" if place is None else self.text[place.start : place.end]


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchIndex:
    """How far words and vectors of a session are."""

    #: Position of the newest chunk.
    head: int
    #: Chunks up to here have words in the index, and vectors; 0: none has.
    indexed_position: int
    embedded_position: int
    #: A configuration of PostgreSQL's full-text search.
    language: str
    #: The model of the vectors; empty where there are none.
    embedding_model: str
    #: Why vectors cannot be searched; empty when they can.
    vectors_unavailable: str
    #: Why the last try to write words failed, or else to embed; empty when neither did.
    failure: str


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchResult:
    """What a search found."""

    #: Best first.
    results: tuple[FoundChunk, ...]
    mode: SearchedBy
    #: How far the index was.
    index: SearchIndex
    #: Chunks that were not searched by words: they have none yet, and there are too many newer
    #: ones. 0 as a rule; more where much was appended within seconds.
    unread_chunks: int = 0
    #: What was read: its token lets a later search see at least as much.
    read_point: ReadPoint


def search_result(message: session_service_pb2.SearchChunksResponse) -> SearchResult:
    """Returns what a search found."""
    return value_of(SearchResult, message, results=tuple(map(_found, message.results)))


def _found(message: session_service_pb2.SearchChunksResponse.Result) -> FoundChunk:
    found = chunk(message.chunk)
    return value_of(
        FoundChunk,
        message,
        chunk=found,
        text=text_of(found),
        words_score=message.words_score if message.words_rank else None,
        vectors_score=message.vectors_score if message.vectors_rank else None,
    )
