"""Sessions, chunks and what a search returns: plain values."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal


@dataclass(frozen=True, kw_only=True, slots=True)
class SessionInfo:
    """A session."""

    name: str
    #: Position of the newest chunk; 0 when there is none.
    head: int
    #: Content and metadata of all chunks, in bytes of UTF-8; of those that an older release
    #: wrote without their metadata.
    content_bytes: int
    created_at: datetime
    #: What its text is searched in; empty: the service is older and does not say.
    language: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Chunk:
    """A chunk of the log. Parts that its kind does not have are empty."""

    #: Its place in the log: 1, 2, 3 …
    position: int
    #: "text", "message" or "step".
    kind: str
    text: str = ""
    #: The speaker of a message.
    role: str = ""
    observation: str = ""
    thought: str = ""
    action: str = ""
    #: Whether the observation of a step came before its thought and action. None: it was appended
    #: before a service could say; its text has the observation first.
    observed_first: bool | None = False
    metadata: dict[str, str] = field(default_factory=dict)
    producer_id: str
    producer_sequence: int
    created_at: datetime

    @property
    def step_parts(self) -> tuple[tuple[str, str], ...]:
        """The parts of a step that are not empty, each after its name, in the order in which
        a model reads them."""
        seen = ("Observation", self.observation)
        done = (("Thought", self.thought), ("Action", self.action))
        parts = (*done, seen) if self.observed_first is False else (seen, *done)
        return tuple((name, text) for name, text in parts if text)


@dataclass(frozen=True, kw_only=True, slots=True)
class Ack:
    """Everything up to here is durable."""

    #: The producer's own number.
    producer_sequence: int
    #: Place in the session's log.
    position: int
    #: Carry it in a read to see these chunks applied.
    token: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Appended:
    """What was appended is durable, at `first_position` to `position` of the log."""

    first_position: int
    position: int
    #: Carry it in a read to see these chunks applied.
    token: str
    #: The name under which the same can be appended again without being stored twice.
    request_id: str

    @property
    def positions(self) -> range:
        """The place of each chunk in the session's log."""
        return range(self.first_position, self.position + 1)


#: By what chunks are found; "auto": by both where vectors can be searched, else by words.
SearchMode = Literal["auto", "words", "vectors", "hybrid"]
#: By what was searched; "unknown" only where the service is newer.
SearchedBy = Literal["words", "vectors", "hybrid", "unknown"]
ChunkKind = Literal["text", "message", "step"]


@dataclass(frozen=True, kw_only=True, slots=True)
class FoundChunk:
    """A chunk that fits a query."""

    chunk: Chunk
    #: The chunk as one text, which the characters below count in.
    text: str
    #: 1, 2, 3 …
    rank: int
    #: Of the fusion; compares chunks of one result only.
    score: float
    #: Its rank by words alone, and by vectors alone; None: not found by them.
    words_rank: int | None
    vectors_rank: int | None
    #: BM25; and the cosine of the angle between query and chunk, -1 to 1.
    words_score: float | None
    vectors_score: float | None
    #: The characters of `text` that fit best; both 0: none in particular.
    from_character: int
    to_character: int

    @property
    def excerpt(self) -> str:
        """What of the text fits best; empty: nothing in particular."""
        return self.text[self.from_character : self.to_character]


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
    chunks: tuple[FoundChunk, ...]
    mode: SearchedBy
    #: How far the index was.
    index: SearchIndex
    #: Chunks that were not searched by words: they have none yet, and there are too many newer
    #: ones. 0 as a rule; more where much was appended within seconds.
    unread_chunks: int = 0
