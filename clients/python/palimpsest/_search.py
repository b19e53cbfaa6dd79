"""What a search finds, and how far its index is, to and from the proto's messages."""

from dataclasses import dataclass
from typing import Any, Literal

from palimpsest._convert import value_of
from palimpsest._convert_chunks import chunk, text_of
from palimpsest._values_common import CharacterRange, PositionRange, ReadPoint
from palimpsest._values_log import Chunk, SourceTrust
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


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryEntry:
    """A small part of a memory."""

    #: The memory's id.
    memory: str
    #: An RFC 9535 normalized path of a PRISM memory; the id of a tree's node, such as "0.12"; level
    #: and revision of a state vector, such as "1.7".
    path: str
    #: 0, 1, 2 … within the path: a long text is several entries.
    part: int
    #: The value; of a long text this part of it.
    value: Any
    #: The same for a prompt, with the names on the path: "people / Ann / role: engineer".
    text: str
    #: The revision that wrote it.
    revision: int
    #: The chunks that it rests on; None: none, since a person wrote or restored it.
    positions: PositionRange | None
    #: How much the least trusted of those chunks is trusted now.
    trust: SourceTrust = "trusted"


@dataclass(frozen=True, kw_only=True, slots=True)
class FoundEntry:
    """An entry of a memory that matches a query; the fields are those of `FoundChunk`."""

    entry: MemoryEntry
    rank: int
    score: float
    words_rank: int | None
    vectors_rank: int | None
    words_score: float | None
    vectors_score: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchedMemory:
    """A memory that was searched."""

    #: The memory's id.
    memory: str
    #: The revision whose entries were searched.
    read_point: ReadPoint
    #: It has later revisions, whose entries are still to be written.
    behind: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class MemorySearchResult:
    """What a search in memories found."""

    #: Best first.
    results: tuple[FoundEntry, ...]
    mode: SearchedBy
    #: All memories that were searched, by id.
    memories: tuple[SearchedMemory, ...]
    #: Why the query has no vector, where words were searched instead; else empty.
    failure: str


def memory_search_result(
    message: session_service_pb2.SearchMemoriesResponse,
) -> MemorySearchResult:
    """Returns what a search in memories found."""
    found = tuple(
        value_of(
            FoundEntry,
            one,
            words_score=one.words_score if one.words_rank else None,
            vectors_score=one.vectors_score if one.vectors_rank else None,
        )
        for one in message.results
    )
    return value_of(MemorySearchResult, message, results=found)


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
